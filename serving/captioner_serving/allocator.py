"""Giving memory back to the system."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["return_memory"]


def return_memory() -> None:
    """Let the allocator return what is free.

    glibc keeps, for each thread, what was freed between blocks still in use: hundreds of megabytes
    once that thread has decoded a very large photo. Other allocators return it by themselves.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
