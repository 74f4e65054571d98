"""References to photos: a name, and where the bytes are.

They are small and can be pickled. The decoding process reads the bytes.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from dataclasses import dataclass

from captioner.errors import ImageNotFoundError, ImageTooLargeError
from captioner.photos.open import LARGEST_FILE


@dataclass(frozen=True, kw_only=True)
class Photo(ABC):
    """A photo to caption; `name` is unique in a run, and is the `image` of its record."""

    name: str
    path: str | None = None  # of the file; None for members of archives and URLs

    @abstractmethod
    def read(self) -> bytes:
        """Read the bytes of the image file. Raises ImageError."""


@dataclass(frozen=True, kw_only=True)
class PhotoFile(Photo):
    """A file on disk."""

    path: str

    def read(self) -> bytes:
        """Read the file without changing its access time."""
        try:
            # With an opener, Python closes the descriptor even if the path is a folder.
            with open(self.path, "rb", opener=open_quietly) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ImageNotFoundError(f"{self.name} is not a regular file: check the path")
                check_size(self.name, status.st_size)
                return file.read()
        except IsADirectoryError as error:
            raise ImageNotFoundError(f"{self.name} is a folder: check the path") from error
        except (OSError, ValueError) as error:
            raise unreadable(self.name, error) from error


@dataclass(frozen=True, kw_only=True)
class LostPhoto(Photo):
    """An input that cannot be listed, such as a folder without permission or a damaged archive."""

    reason: str

    def read(self) -> bytes:
        """Raise ImageNotFoundError."""
        raise ImageNotFoundError(self.reason)


def name_on_disk(name: str, root: str | None) -> str:
    """Return the name on disk for a name from a list.

    A surrogate is a byte that is not UTF-8: the name on disk has this byte, or the list is in
    Windows-1252.
    """
    if name.isascii() or os.path.lexists(os.path.join(root or "", name)):
        return name
    try:
        windows = os.fsencode(name).decode("cp1252")
    except UnicodeDecodeError:
        return name
    return windows if os.path.lexists(os.path.join(root or "", windows)) else name


def check_size(name: str, size: int) -> None:
    """Raise ImageTooLargeError if a file is too large to be a photo."""
    if size > LARGEST_FILE:
        raise ImageTooLargeError(f"{name} has more than {LARGEST_FILE:,} bytes: is it a photo?")


def unreadable(name: str, error: Exception) -> ImageNotFoundError:
    """Return the error for a photo that the system cannot read."""
    reason = getattr(error, "strerror", None) or error
    return ImageNotFoundError(f"{name} cannot be read ({reason}): check the path")


def open_quietly(path: str, flags: int) -> int:
    """Open a file without changing its access time; an opener of `open`."""
    # Non-blocking, because a pipe among the photos must not block the run.
    flags |= getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # O_NOATIME is only for the owner
        return os.open(path, flags)
