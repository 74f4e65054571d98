"""From a photo to a grid: open it safely, turn it upright, make it a square, encode it."""
