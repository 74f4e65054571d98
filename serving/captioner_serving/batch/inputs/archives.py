"""Photos inside tar and zip files, listed in the order of the archive and read in place.

WebDataset shards are tar files; their other members (.json, .txt, .cls) are left alone.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, cast

from captioner.archives import BoundedTarInfo, open_zip, tar_members, walk_tar
from captioner.errors import ImageError, ImageNotFoundError
from captioner.files import digest
from captioner.vision.header import IMAGE_SUFFIXES
from captioner_serving.batch.inputs.links import LinkStream
from captioner_serving.batch.inputs.photos import (
    LostPhoto,
    MemoryPhoto,
    Photo,
    check_size,
    unreadable,
)

__all__ = [
    "ARCHIVES",
    "COMPRESSED",
    "TarMember",
    "ZipMember",
    "archive_photos",
    "tar_stream_photos",
]

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ARCHIVES = (".tar", ".zip", *COMPRESSED)

_LARGEST_IN_MEMORY = 1 << 28  # bytes; photos of a compressed archive wait here to be decoded
_LARGEST_SPARSE = 1 << 24  # a kilobyte can claim gigabytes of holes, and photos have none
# Photos hardly compress. What unpacks to so many times its size, and to so much, is made to hold up
# whoever reads it.
_MOST_TIMES = 100
_MOST_UNPACKED = 1 << 32  # with all that lies between the photos, which a tar file unpacks too
_MOST_ZIPPED = _LARGEST_IN_MEMORY  # of photos alone


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
    """A member of a zip file, read in place; the file's list of members is read once a process."""

    archive: str
    number: int  # among all members: several may have one name

    def read(self) -> bytes:
        """See Photo."""
        try:
            archive = open_zip(self.archive)
            member = archive.infolist()[self.number]
            check_size(self.name, member.file_size)
            with archive.open(member) as stream:
                return stream.read(member.file_size)  # and no more, whatever there is
        except (ImageError, MemoryError):
            raise
        except Exception as error:  # damaged members end in almost any exception
            if "password" in str(error):
                reason = f"{self.name} is encrypted: unpack the archive first"
                raise ImageNotFoundError(reason) from error
            raise unreadable(self.name, error) from error


def archive_photos(path: str) -> Iterator[Photo]:
    """List an archive's images; what cannot be read is in the list as a LostPhoto."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError("it is not a regular file")  # a pipe would wait for somebody to write
        if path.lower().endswith(".zip"):
            yield from _numbered(_zip_photos(path))
        elif path.lower().endswith(".tar"):
            yield from _numbered(_tar_photos(path))
        else:
            with open(path, "rb") as file:
                yield from tar_stream_photos(file, path)
    except Exception as error:  # damaged headers end in almost any exception
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        yield LostPhoto(
            name=path, reason=f"{path} cannot be read to its end ({reason}): copy it again"
        )


def tar_stream_photos(file: LinkStream | IO[bytes], name: str) -> Iterator[Photo]:
    """List the images of a tar stream of any compression, each with its bytes."""
    return _numbered(_streamed_photos(file, name))


def _numbered(photos: Iterator[Photo]) -> Iterator[Photo]:
    """Put #2 behind the second name of two that are one."""
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


def _streamed_photos(packed: LinkStream | IO[bytes], name: str) -> Iterator[Photo]:
    file = cast("IO[bytes]", packed)  # of which tarfile asks for read and tell alone
    with tarfile.open(fileobj=file, mode="r|*", tarinfo=BoundedTarInfo) as tar:
        stream: Any = tar.fileobj
        for member in walk_tar(tar):
            if _is_photo(member):
                yield _in_memory(tar, member, f"{name}/{member.name}")
            # Go on to where the member ends; tarfile would look for it far behind the end. A photo
            # has been read already, and may leave nothing to go over.
            while True:
                if stream.tell() > max(_MOST_UNPACKED, _MOST_TIMES * packed.tell()):
                    raise tarfile.ReadError(f"it unpacks to more than {stream.tell():,} bytes")
                if (left := tar.offset - 1 - stream.tell()) <= 0:
                    break
                if not stream.read(min(left, 1 << 20)):
                    raise tarfile.ReadError(f"cut off at byte {stream.tell():,}")


def _in_memory(tar: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> Photo:
    """Read a member that cannot be read in place later; its size is known before."""
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
            # No more of a member is read than it claims; several may claim the same bytes.
            unpacked += member.file_size
            if unpacked > most:
                raise zipfile.BadZipFile(f"it unpacks to more than {most:,} bytes")
            yield ZipMember(name=name, archive=path, number=number)


def _too_packed(member: zipfile.ZipInfo, name: str) -> str | None:
    """Say why a member of a zip file is not unpacked in memory."""
    if member.compress_type == zipfile.ZIP_STORED:
        return None
    if member.compress_type != zipfile.ZIP_DEFLATED:  # zipfile unpacks the others without a bound
        return f"{name} is packed by method {member.compress_type}, not by deflate: unpack it"
    return _too_large(name, member.file_size, _LARGEST_IN_MEMORY)


def _too_large(name: str, size: int, most: int) -> str | None:
    if size <= most:
        return None
    return f"{name} has {size:,} bytes, and the limit here is {most:,}: unpack it"


def _is_photo(member: tarfile.TarInfo) -> bool:
    return member.isfile() and _is_image(member.name)


def _is_image(name: str) -> bool:
    parts = [part for part in name.split("/") if part != "."]
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return name.lower().endswith(IMAGE_SUFFIXES) and not hidden
