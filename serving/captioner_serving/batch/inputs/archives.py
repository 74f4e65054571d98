"""Photos inside tar and zip files, in the order of the archive.

WebDataset shards are tar files; their other members (.json, .txt, .cls) are skipped.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import IO, TYPE_CHECKING, Any

from captioner.errors import ImageError, ImageNotFoundError
from captioner.photos.header import IMAGE_SUFFIXES
from captioner.shared.archives import BoundedTarInfo, open_zip, tar_members, walk_tar
from captioner.shared.files import digest
from captioner_serving.batch.inputs.photos import (
    LostPhoto,
    MemoryPhoto,
    Photo,
    check_size,
    unreadable,
)
from captioner_serving.batch.inputs.urls import file_system

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ARCHIVES = (".tar", ".zip", *COMPRESSED)

_LARGEST_IN_MEMORY = 1 << 28  # bytes of a photo in a compressed archive
_LARGEST_SPARSE = 1 << 24  # bytes; a sparse file of a kilobyte can claim gigabytes
# An archive may unpack to _MOST_TIMES its size, or to these numbers of bytes if they are larger.
# Photos hardly compress, so an archive that unpacks to more is an attack (zip bomb).
_MOST_TIMES = 100
_MOST_UNPACKED = 1 << 32  # bytes of a tar file, including members that are not photos
_MOST_ZIPPED = _LARGEST_IN_MEMORY  # bytes of the photos in a zip file


@dataclass(frozen=True, kw_only=True)
class TarMember(Photo):
    """A member of an uncompressed tar file, read in place."""

    archive: str
    offset: int
    size: int

    def read(self) -> bytes:
        """See Photo."""
        try:
            check_size(self.name, self.size)
            with open(self.archive, "rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise unreadable(self.name, error) from error


@dataclass(frozen=True, kw_only=True)
class ZipMember(Photo):
    """A member of a zip file, read in place. Each process reads the list of members once."""

    archive: str
    number: int  # index among all members, because names may repeat

    def read(self) -> bytes:
        """See Photo."""
        try:
            archive = open_zip(self.archive)
            member = archive.infolist()[self.number]
            check_size(self.name, member.file_size)
            with archive.open(member) as stream:
                return stream.read(member.file_size)  # not more than the size that was checked
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # damaged members raise almost any exception
            if "password" in str(error):
                reason = f"{self.name} is encrypted: unpack the archive first"
                raise ImageNotFoundError(reason) from error
            raise unreadable(self.name, error) from error


def archive_photos(path: str) -> Iterator[Photo]:
    """Yield the images of an archive; a LostPhoto for an image that cannot be read."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError("it is not a regular file")  # opening a pipe could block
        if path.lower().endswith(".zip"):
            yield from _numbered(_zip_photos(path))
        elif path.lower().endswith(".tar"):
            yield from _numbered(_tar_photos(path))
        else:
            with open(path, "rb") as file:
                yield from _numbered(_streamed_photos(file, path))
    except Exception as error:  # damaged headers raise almost any exception
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        yield LostPhoto(
            name=path, reason=f"{path} cannot be read to its end ({reason}): copy it again"
        )


def remote_members(url: str) -> Iterator[Photo]:
    """Yield the images of an archive at a URL, with their bytes, in the order of the archive.

    url: a chain of fsspec with a pattern, such as tar://*::https://host/shots.tar.

    Exceptions of the file system are not converted.
    """
    system, pattern = file_system(url)
    yield from _numbered(_matching(system, pattern.strip("/"), url.partition("::")[2]))


def _matching(system: AbstractFileSystem, pattern: str, archive: str) -> Iterator[Photo]:
    for member, details in system.find("", detail=True).items():
        if not (_is_image(member) and fnmatchcase(member, pattern or "*")):
            continue
        name = f"{archive}/{member}"
        if reason := _too_large(name, details["size"], _LARGEST_IN_MEMORY):
            yield LostPhoto(name=name, reason=reason)
        else:
            yield MemoryPhoto(name=name, data=system.cat_file(member))


def _numbered(photos: Iterator[Photo]) -> Iterator[Photo]:
    """Make names unique: append #2, #3 and so on to repeated names."""
    seen: set[bytes] = set()
    for photo in photos:
        name, number = photo.name, 1
        while (key := digest(name)) in seen:
            number += 1
            name = f"{photo.name}#{number}"
        seen.add(key)
        yield photo if number == 1 else replace(photo, name=name)


def _tar_photos(path: str) -> Iterator[Photo]:
    for tar, member in tar_members(path):
        name, offset, size = f"{path}/{member.name}", member.offset_data, member.size
        if not _is_photo(member):
            continue
        if member.issparse():
            yield _in_memory(tar, member, name)
        else:
            yield TarMember(name=name, archive=path, offset=offset, size=size)


def _streamed_photos(file: IO[bytes], name: str) -> Iterator[Photo]:
    with tarfile.open(fileobj=file, mode="r|*", tarinfo=BoundedTarInfo) as tar:
        stream: Any = tar.fileobj
        for member in walk_tar(tar):
            if _is_photo(member):
                yield _in_memory(tar, member, f"{name}/{member.name}")
            # Skip the rest of the member here, because tarfile would not notice a truncated file.
            while True:
                if stream.tell() > max(_MOST_UNPACKED, _MOST_TIMES * file.tell()):
                    raise tarfile.ReadError(f"it unpacks to more than {stream.tell():,} bytes")
                if (left := tar.offset - 1 - stream.tell()) <= 0:
                    break
                if not stream.read(min(left, 1 << 20)):
                    raise tarfile.ReadError(f"truncated at byte {stream.tell():,}")


def _in_memory(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> Photo:
    """Read a member now that cannot be read later in place; a LostPhoto if it is too large."""
    most = _LARGEST_SPARSE if member.issparse() else _LARGEST_IN_MEMORY
    if reason := _too_large(name, member.size, most):
        return LostPhoto(name=name, reason=reason)
    stream = tar.extractfile(member)
    return MemoryPhoto(name=name, data=stream.read() if stream else b"")


def _zip_photos(path: str) -> Iterator[Photo]:
    with zipfile.ZipFile(path) as archive:
        unpacked = 0
        most = max(_MOST_ZIPPED, _MOST_TIMES * os.path.getsize(path))
        for number, member in enumerate(archive.infolist()):
            if not _is_image(member.filename):
                continue
            name = f"{path}/{member.filename}"
            if reason := _too_packed(member, name):
                yield LostPhoto(name=name, reason=reason)
                continue
            # Add up the claimed sizes: no more is read of a member, and members may share bytes.
            unpacked += member.file_size
            if unpacked > most:
                raise zipfile.BadZipFile(f"it unpacks to more than {most:,} bytes")
            yield ZipMember(name=name, archive=path, number=number)


def _too_packed(member: zipfile.ZipInfo, name: str) -> str | None:
    """Return why a member of a zip file cannot be unpacked in memory, or None."""
    if member.compress_type == zipfile.ZIP_STORED:
        return None
    # zipfile does not limit the output of other methods.
    if member.compress_type != zipfile.ZIP_DEFLATED:
        return f"{name} has compression method {member.compress_type}, not deflate: unpack it first"
    return _too_large(name, member.file_size, _LARGEST_IN_MEMORY)


def _too_large(name: str, size: int, most: int) -> str | None:
    if size <= most:
        return None
    return f"{name} has {size:,} bytes; the limit in an archive is {most:,}: unpack it first"


def _is_photo(member: tarfile.TarInfo) -> bool:
    return member.isfile() and _is_image(member.name)


def _is_image(name: str) -> bool:
    parts = [part for part in name.split("/") if part != "."]
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return name.lower().endswith(IMAGE_SUFFIXES) and not hidden
