"""What a run has done, on disk before it counts."""
