"""Photos inside tar and zip files, read in place, in the order of the archive.

WebDataset shards are tar files; their other members (.json, .txt, .cls) are skipped.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

from captioner.errors import ImageError, ImageNotFoundError
from captioner.photos.formats import IMAGE_SUFFIXES
from captioner.shared.archives import open_zip, tar_members
from captioner.shared.files import digest
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, check_size, unreadable

ARCHIVES = (".tar", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_LARGEST_DEFLATED = 1 << 28  # bytes of a photo, or of all photos in a small archive
# A larger zip file may unpack to this many times its size. Photos hardly compress, so an archive
# that unpacks to more is an attack (zip bomb).
_MOST_TIMES = 100


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
            yield LostPhoto(name=path, reason=f"{path} is a compressed tar file: unpack it first")
    except Exception as error:  # damaged headers raise almost any exception
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        yield LostPhoto(
            name=path, reason=f"{path} cannot be read to its end ({reason}): copy it again"
        )


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
    for _, member in tar_members(path):
        name, offset, size = f"{path}/{member.name}", member.offset_data, member.size
        if not (member.isfile() and _is_image(member.name)):
            continue
        if member.issparse():  # a kilobyte can claim gigabytes
            yield LostPhoto(name=name, reason=f"{name} is a sparse file: unpack the archive first")
        else:
            yield TarMember(name=name, archive=path, offset=offset, size=size)


def _zip_photos(path: str) -> Iterator[Photo]:
    with zipfile.ZipFile(path) as archive:
        unpacked = 0
        most = max(_LARGEST_DEFLATED, _MOST_TIMES * os.path.getsize(path))
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
    if member.file_size > _LARGEST_DEFLATED:
        limit = f"the limit in an archive is {_LARGEST_DEFLATED:,}"
        return f"{name} has {member.file_size:,} bytes; {limit}: unpack it first"
    return None


def _is_image(name: str) -> bool:
    parts = [part for part in name.split("/") if part != "."]
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return name.lower().endswith(IMAGE_SUFFIXES) and not hidden
