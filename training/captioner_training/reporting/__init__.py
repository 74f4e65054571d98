"""What a run says of itself: its log and its board."""
