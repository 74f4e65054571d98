"""A photo, on its way to a grid: opened within bounds, turned, made a square, encoded."""
