"""Soft attention over the grid: scores, heads, masks and positions."""
