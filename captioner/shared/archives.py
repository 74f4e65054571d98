"""Reading the members of untrusted archives in order.

tarfile trusts the sizes in headers, and stops silently at damage. These functions check sizes first
and raise an exception at damage.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Self

_LARGEST_HEADER = 1 << 20  # bytes; tarfile reads extended headers into memory
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _BoundedTarInfo(tarfile.TarInfo):
    """A member whose size is checked when its header is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header. Raises tarfile.ReadError: the size is negative or too large."""
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _HEADERS and member.size > _LARGEST_HEADER):
            raise tarfile.ReadError(f"a header claims {member.size:,} bytes")
        return member


def tar_members(path: str | Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Iterate over the members of an uncompressed tar file, each with the open file.

    Raises tarfile.ReadError: the file is damaged or truncated.
    """
    offset = -1
    with tarfile.open(path, "r:", tarinfo=_BoundedTarInfo) as tar:
        while (member := tar.next()) is not None:
            if member.size < 0 or tar.offset <= offset:  # an endless loop otherwise
                raise tarfile.ReadError(f"damaged at byte {member.offset:,}")
            offset = tar.offset
            yield tar, member
            tar.members = []  # type: ignore[attr-defined]  # tarfile keeps all members
        # tarfile stops at damage without an error. A valid end is zeros or the end of the file.
        end = tar.offset
    with Path(path).open("rb") as file:
        file.seek(end)
        block = file.read(tarfile.BLOCKSIZE)
        if any(block) or (not block and file.seek(0, 2) != end):
            raise tarfile.ReadError(f"damaged or cut off at byte {end:,}")


def open_zip(path: str) -> zipfile.ZipFile:
    """Open a zip file and keep it open, because reading its list of members is slow."""
    status = Path(path).stat()
    return _keep_open(os.path.abspath(path), status.st_mtime_ns, status.st_size)  # noqa: PTH100


@lru_cache(maxsize=4)
def _keep_open(path: str, *_changes: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)
