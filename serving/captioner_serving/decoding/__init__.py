"""Decoding of untrusted photos in child processes."""
