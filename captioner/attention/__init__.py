"""Soft attention over the grid: scores, heads and masks, places."""
