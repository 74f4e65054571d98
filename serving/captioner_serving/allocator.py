"""What glibc's allocator keeps for itself, and how much of it; other allocators need no telling."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

__all__ = ["return_memory", "share_arena"]

_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h


def return_memory() -> None:
    """Let the allocator return what is free.

    glibc keeps, for each thread, what was freed between blocks still in use: hundreds of megabytes
    once that thread has decoded a very large photo.
    """
    if trim := _glibc("malloc_trim"):
        trim(0)


def share_arena() -> None:
    """Let threads that start from now on share one arena.

    With one each, what a thread has freed is of no use to another, and the memory of a process that
    captions in several threads is the sum of their peaks. Call it before they start.
    """
    if option := _glibc("mallopt"):
        option(_ARENA_MAX, 1)


def _glibc(name: str) -> Callable[..., int] | None:
    """Find a function of glibc; musl has none of these."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), name, None)
