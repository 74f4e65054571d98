"""A photo by its name and the place of its bytes.

A photo is small and picklable: it goes to the process that decodes it, which reads its bytes there.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from captioner.errors import ImageNotFoundError, ImageTooLargeError
from captioner.vision.image import LARGEST_FILE

__all__ = [
    "LostPhoto",
    "MemoryPhoto",
    "Photo",
    "PhotoFile",
    "check_size",
    "name_on_disk",
    "unreadable",
]


@dataclass(frozen=True, kw_only=True)
class Photo(ABC):
    """Something to caption; `name` stands in its record, and no two of a run share one."""

    name: str

    @property
    def path(self) -> str | None:
        """The file itself, for what is written beside it; None where there is no such place."""
        return None

    def without_data(self) -> Photo:
        """Return the photo without the bytes that it carries."""
        return self

    @abstractmethod
    def read(self) -> bytes:
        """Read the bytes of the image file.

        Raises:
            ImageError: it cannot be read.
            MissingExtraError: a link, without the extra that reads it.
        """


@dataclass(frozen=True, kw_only=True)
class PhotoFile(Photo):
    """A file of its own."""

    file: str

    @property
    def path(self) -> str | None:
        """See Photo."""
        return self.file

    def read(self) -> bytes:
        """Read the file without a trace: not even the time of its last reading changes."""
        try:
            # With an opener, Python closes what turns out to be a folder.
            with open(self.file, "rb", opener=_open_quietly) as file:
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
class MemoryPhoto(Photo):
    """A photo whose bytes came with its archive: a compressed tar file is read but once."""

    data: bytes = field(repr=False)

    def without_data(self) -> Photo:
        """See Photo."""
        return replace(self, data=b"")

    def read(self) -> bytes:
        """See Photo."""
        return self.data


@dataclass(frozen=True, kw_only=True)
class LostPhoto(Photo):
    """Something that could not even be listed: a folder without permission, a damaged archive."""

    reason: str

    def read(self) -> bytes:
        """Say why, always."""
        raise ImageNotFoundError(self.reason)


def name_on_disk(name: str, root: str | None) -> str:
    """Return a name as the file system has it.

    Bytes that are not UTF-8 stand as surrogates. They are a name on disk, or a name in Windows-1252
    that a list from Windows has.
    """
    if name.isascii() or os.path.lexists(os.path.join(root or "", name)):
        return name
    try:
        windows = os.fsencode(name).decode("cp1252")
    except UnicodeDecodeError:
        return name
    return windows if os.path.lexists(os.path.join(root or "", windows)) else name


def check_size(name: str, size: int) -> None:
    """Refuse what is too large to be a photo."""
    if size > LARGEST_FILE:
        raise ImageTooLargeError(
            f"{name} has {size:,} bytes, and the limit is {LARGEST_FILE:,}: is it a photo?"
        )


def unreadable(name: str, error: Exception) -> ImageNotFoundError:
    """Say in our own words why the system cannot read a photo."""
    reason = getattr(error, "strerror", None) or error
    return ImageNotFoundError(f"{name} cannot be read ({reason}): check the path")


def _open_quietly(path: str, flags: int) -> int:
    # Non-blocking: a pipe among the photos must not hold the run up.
    flags |= getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # only the owner may leave the time of access alone
        return os.open(path, flags)
