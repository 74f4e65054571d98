"""Archives from anywhere: their members, listed in order, to be read in place.

tarfile believes what a header says: sizes are looked at before, and damage is an error and no end.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Self

__all__ = ["BoundedTarInfo", "open_zip", "tar_members", "walk_tar"]

_LARGEST_HEADER = 1 << 20  # tarfile reads names and attributes of a member at one go
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class BoundedTarInfo(tarfile.TarInfo):
    """A member whose size is looked at before tarfile believes it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header; tarfile.ReadError where it claims what no header has."""
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _HEADERS and member.size > _LARGEST_HEADER):
            raise tarfile.ReadError(f"a header says that it has {member.size:,} bytes")
        return member


def walk_tar(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Give the members of an open tar file, none of which it keeps in memory.

    Raises tarfile.ReadError: it is damaged.
    """
    offset = -1
    while (member := tar.next()) is not None:
        if member.size < 0 or tar.offset <= offset:  # or it would go round in circles
            raise tarfile.ReadError(f"damaged at byte {member.offset:,}")
        offset = tar.offset
        yield member
        tar.members = []  # type: ignore[attr-defined]  # or tarfile would remember them all


def tar_members(path: str | Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Give the members of an uncompressed tar file, with the file.

    Raises tarfile.ReadError: it is damaged or cut off.
    """
    with tarfile.open(path, "r:", tarinfo=BoundedTarInfo) as tar:
        for member in walk_tar(tar):
            yield tar, member
        # At damage tarfile just ends: where it ends there must be zeros, or nothing.
        end = tar.offset
    with Path(path).open("rb") as file:
        file.seek(end)
        block = file.read(tarfile.BLOCKSIZE)
        if any(block) or (not block and file.seek(0, 2) != end):
            raise tarfile.ReadError(f"damaged or cut off at byte {end:,}")


@lru_cache(maxsize=4)
def open_zip(path: str) -> zipfile.ZipFile:
    """Open a zip file for as long as the process lives: its list of members may be long."""
    return zipfile.ZipFile(path)
