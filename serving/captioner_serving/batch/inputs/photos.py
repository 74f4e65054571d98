"""A photo by its name and the place of its bytes: a file, an archive, a link, memory.

A photo is small and picklable: it goes to the process that decodes it, which reads its bytes there.
"""

from __future__ import annotations

import os
import stat
import zipfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache

from captioner import errors
from captioner_serving.batch.inputs.links import Reach, fetch

__all__ = [
    "LostPhoto",
    "MemoryPhoto",
    "Photo",
    "PhotoFile",
    "RemotePhoto",
    "TarMember",
    "ZipMember",
]

_LARGEST = 1 << 30  # bytes; more is a disk image or a film, and reading it would take all memory


@dataclass(frozen=True, kw_only=True)
class Photo(ABC):
    """Something to caption; `name` stands in its record, and no two of a run share one."""

    name: str

    @property
    def path(self) -> str | None:
        """The file itself, for what is written beside it; None where there is no such place."""
        return None

    def light(self) -> Photo:
        """Give the photo without bytes that it carries, for those who only want its name."""
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
        """The file itself."""
        return self.file

    def read(self) -> bytes:
        """Read the file without a trace: not even the time of its last reading changes."""
        try:
            # With an opener, Python closes what turns out to be a folder.
            with open(self.file, "rb", opener=_open_quietly) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise errors.ImageNotFoundError(
                        f"{self.name} is not a regular file: check the path"
                    )
                _check_size(self.name, status.st_size)
                return file.read()
        except IsADirectoryError as error:
            raise errors.ImageNotFoundError(f"{self.name} is a folder: check the path") from error
        except (OSError, ValueError) as error:
            raise _unreadable(self.name, error) from error


@dataclass(frozen=True, kw_only=True)
class TarMember(Photo):
    """A member of an uncompressed tar file, read in place."""

    archive: str
    offset: int
    size: int

    def read(self) -> bytes:
        """Read the member's bytes out of the archive."""
        try:
            _check_size(self.name, self.size)
            with open(self.archive, "rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise _unreadable(self.name, error) from error


@dataclass(frozen=True, kw_only=True)
class ZipMember(Photo):
    """A member of a zip file, read in place."""

    archive: str
    number: int  # among all members: several may have one name

    def read(self) -> bytes:
        """Read and unpack the member; the archive's list of members is read once a process."""
        try:
            archive = _open_zip(self.archive)
            member = archive.infolist()[self.number]
            _check_size(self.name, member.file_size)
            with archive.open(member) as stream:
                return stream.read(member.file_size)  # and no more, whatever there is
        except (errors.ImageError, MemoryError):
            raise
        except Exception as error:  # damaged members end in almost any exception
            if "password" in str(error):
                reason = f"{self.name} is encrypted: unpack the archive first"
                raise errors.ImageNotFoundError(reason) from error
            raise _unreadable(self.name, error) from error


@dataclass(frozen=True, kw_only=True)
class RemotePhoto(Photo):
    """A file behind a link."""

    url: str
    reach: Reach = "own"

    def read(self) -> bytes:
        """Fetch the file."""
        return fetch(self.url, limit=_LARGEST, reach=self.reach)


@dataclass(frozen=True, kw_only=True)
class MemoryPhoto(Photo):
    """A photo whose bytes came with its archive: a compressed tar file is read but once."""

    data: bytes = field(repr=False)

    def light(self) -> Photo:
        """See Photo."""
        return replace(self, data=b"")

    def read(self) -> bytes:
        """Give the bytes."""
        return self.data


@dataclass(frozen=True, kw_only=True)
class LostPhoto(Photo):
    """Something that could not even be listed: a folder without permission, a damaged archive."""

    reason: str

    def read(self) -> bytes:
        """Say why, always."""
        raise errors.ImageNotFoundError(self.reason)


def _open_quietly(path: str, flags: int) -> int:
    # Non-blocking: a pipe among the photos must not hold the run up.
    flags |= getattr(os, "O_NONBLOCK", 0)
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:  # only the owner may leave the time of access alone
        return os.open(path, flags)


def _check_size(name: str, size: int) -> None:
    if size > _LARGEST:
        raise errors.ImageTooLargeError(
            f"{name} has {size:,} bytes, and the limit is {_LARGEST:,}: is it a photo?"
        )


def _unreadable(name: str, error: Exception) -> errors.ImageError:
    reason = getattr(error, "strerror", None) or error
    return errors.ImageNotFoundError(f"{name} cannot be read ({reason}): check the path")


@lru_cache(maxsize=2)
def _open_zip(path: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)
