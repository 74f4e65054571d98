"""Decoders: from a grid to the scores of the next word, one step at a time."""
