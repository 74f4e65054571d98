"""Recognizing errors that mean that memory ran out."""

from __future__ import annotations

__all__ = ["is_out_of_memory"]

_MESSAGES = ("out of memory", "can't allocate memory", "Cannot allocate memory", "memory is short")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether Python, torch or the system ran out of memory."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _MESSAGES)
