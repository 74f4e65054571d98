"""What is there already under the name of a file that a run is about to write."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["read_existing"]


def read_existing(path: str | os.PathLike[str], *, kind: str, largest: int) -> bytes | None:
    """Read a file, None if there is none; a pipe of its name must not hold the run up.

    Args:
        path: of the file.
        kind: what it should be, "a sidecar" say.
        largest: bytes that such a file may have: it is read into memory.

    Raises:
        OSError: it cannot be read, or is no file of such a size.

    """
    try:
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            if status.st_size > largest:
                raise OSError(errno.EINVAL, f"it has {status.st_size:,} bytes, too many for {kind}")
            return file.read()
    except FileNotFoundError:
        return None
