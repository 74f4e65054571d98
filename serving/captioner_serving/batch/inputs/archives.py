"""Photos inside tar and zip files, listed in the order of the archive and read in place.

WebDataset shards are tar files; their other members (.json, .txt, .cls) are left alone.
"""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO

from captioner_serving.batch.inputs.photos import (
    LostPhoto,
    MemoryPhoto,
    Photo,
    TarMember,
    ZipMember,
)

__all__ = ["ARCHIVES", "COMPRESSED", "archive_photos", "tar_stream_photos"]

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ARCHIVES = (".tar", ".zip", *COMPRESSED)


def archive_photos(path: str, suffixes: tuple[str, ...]) -> Iterator[Photo]:
    """List an archive's images; their names are ARCHIVE/MEMBER."""
    try:
        if path.lower().endswith(".zip"):
            yield from _zip_photos(path, suffixes)
        elif path.lower().endswith(".tar"):
            yield from _tar_photos(path, suffixes)
        else:
            with open(path, "rb") as file:
                yield from tar_stream_photos(file, path, suffixes)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        yield LostPhoto(
            name=path, reason=f"{path} cannot be read to its end ({reason}): copy it again"
        )


def tar_stream_photos(file: IO[bytes], name: str, suffixes: tuple[str, ...]) -> Iterator[Photo]:
    """List the images of a tar stream of any compression, each with its bytes."""
    with tarfile.open(fileobj=file, mode="r|*") as tar:
        for member in _members(tar, suffixes):
            stream = tar.extractfile(member)
            if stream is not None:
                yield MemoryPhoto(name=f"{name}/{member.name}", data=stream.read())


def _tar_photos(path: str, suffixes: tuple[str, ...]) -> Iterator[Photo]:
    with tarfile.open(path, "r:") as tar:
        for member in _members(tar, suffixes):
            name = f"{path}/{member.name}"
            if member.issparse():
                stream = tar.extractfile(member)
                yield MemoryPhoto(name=name, data=stream.read() if stream else b"")
            else:
                offset, size = member.offset_data, member.size
                yield TarMember(name=name, archive=path, offset=offset, size=size)
        _check_end(tar, path)


def _check_end(tar: tarfile.TarFile, path: str) -> None:
    """Notice damage, at which tarfile just ends: where it ends there must be zeros, or nothing."""
    end = tar.offset
    with open(path, "rb") as file:
        file.seek(end)
        block = file.read(tarfile.BLOCKSIZE)
        if any(block) or (not block and file.seek(0, 2) != end):
            raise tarfile.ReadError(f"damaged or cut off at byte {end:,}")


def _members(tar: tarfile.TarFile, suffixes: tuple[str, ...]) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        if member.isfile() and _is_image(member.name, suffixes):
            yield member
        tar.members = []  # type: ignore[attr-defined]  # or tarfile would remember them all


def _zip_photos(path: str, suffixes: tuple[str, ...]) -> Iterator[Photo]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if _is_image(name, suffixes):
                yield ZipMember(name=f"{path}/{name}", archive=path, member=name)


def _is_image(name: str, suffixes: tuple[str, ...]) -> bool:
    parts = [part for part in name.split("/") if part != "."]
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return name.lower().endswith(suffixes) and not hidden
