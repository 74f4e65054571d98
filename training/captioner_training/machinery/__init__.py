"""What a run stands on: processes, lock, averaged weights, schedule."""
