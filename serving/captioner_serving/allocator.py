"""Memory: giving it back to the system, and knowing when there is none."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

__all__ = ["bound_arenas", "is_out_of_memory", "return_memory"]

_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h


def is_out_of_memory(error: Exception) -> bool:
    """Whether something failed for want of memory: Python's, an engine's or the system's."""
    words = (
        "out of memory",
        "can't allocate memory",  # torch's
        "Failed to allocate memory",  # onnxruntime's
        "Cannot allocate memory",
        "memory is short",
    )
    return isinstance(error, MemoryError) or any(each in str(error) for each in words)


def return_memory() -> None:
    """Let the allocator return what is free.

    glibc keeps, for each thread, what was freed between blocks still in use: hundreds of megabytes
    once that thread has decoded a very large photo. Other allocators return it by themselves.
    """
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


def bound_arenas(most: int) -> None:
    """Let all threads share so many of the allocator's arenas; call it before there are threads.

    glibc gives threads arenas of their own, up to eight times the cores, and what one thread has
    freed another cannot use.
    """
    if (set_option := _of_glibc("mallopt")) is not None:
        set_option(_ARENA_MAX, most)


def _of_glibc(name: str) -> Callable[..., int] | None:
    """Find a function that other systems and musl do not have."""
    if sys.platform != "linux":
        return None
    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return found
