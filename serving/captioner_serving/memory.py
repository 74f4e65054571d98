"""Out-of-memory errors, and the release of memory."""

from __future__ import annotations

import ctypes
import errno
from contextlib import suppress

import torch

from captioner_serving.decoding.process import ProcessesKilledError

_EXCEPTIONS = (MemoryError, torch.OutOfMemoryError, ProcessesKilledError)
# torch's allocators for the CPU and MPS raise a plain RuntimeError.
_MESSAGES = ("can't allocate memory", "out of memory")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that memory ran out."""
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES):
        return True
    is_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return is_system or isinstance(error, _EXCEPTIONS)


def release_memory() -> None:
    """Return free memory to the system, where the C library is glibc."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
