"""The bytes of original images: files, members of tar and zip files, cells of Parquet."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from captioner.errors import DataError, MissingExtraError
from captioner.photos.open import LARGEST_FILE
from captioner.shared.archives import open_zip
from captioner.shared.paths import there_is_no

_SAMPLE = 4096  # bytes from the middle that are compared first


class Location(NamedTuple):
    """The bytes of one original image."""

    path: str  # path of the file or archive
    offset: int  # offset in the file; row in a Parquet file
    size: int
    member: str | None  # member of a zip file; column of a Parquet file
    stamp: int  # changes with the image: CRC-32 in zip and Parquet files, else modification time
    in_table: bool = False  # whether the image is in a Parquet file

    @property
    def is_loose(self) -> bool:
        """Whether the image is a separate file. Members of tar files have an offset."""
        return self.member is None and self.offset == 0

    @property
    def has_checksum(self) -> bool:
        """Whether `stamp` is the CRC-32 of the bytes."""
        return self.member is not None


def read_location(location: Location) -> bytes:
    """Read an original image.

    Raises OSError: the image cannot be read or is too large, or its archive is damaged.
    """
    if location.size > LARGEST_FILE:
        raise OSError(f"{location.size:,} bytes are too large for a photo")
    if location.in_table and location.member is not None:
        return _parquet_photo(location.path, location.member, location.offset)
    if location.member is None:
        with open(location.path, "rb") as file:  # noqa: PTH123 - faster than Path.open
            file.seek(location.offset)
            return file.read(location.size)
    try:
        with open_zip(location.path).open(location.member) as member:  # checks the CRC
            return member.read(location.size)  # a limit, because of zip bombs
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise OSError(str(error)) from error  # RuntimeError: encrypted


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a file as pyarrow's ParquetFile.

    Raises:
        DataError: the file is missing or cannot be read.
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("reading Parquet", "parquet") from error
    if not path.is_file():
        raise DataError(there_is_no("file", path))
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _parquet_photo(path: str, column: str, row: int) -> bytes:
    """Read a photo from a table. Its row group is cached for the next photo."""
    ends = _group_ends(path)
    group = next(number for number, end in enumerate(ends) if row < end)
    first = ends[group - 1] if group else 0
    photo = _photos(path, column, group)[row - first].as_py()
    return bytes(photo["bytes"] if isinstance(photo, dict) else photo)


@lru_cache(maxsize=2)
def _photos(path: str, column: str, group: int) -> Sequence[Any]:
    with open_parquet(Path(path)) as file:
        # Not columns=[column], which would need the names of a structure's fields.
        photos: Sequence[Any] = file.read_row_group(group).column(column)
        return photos


@lru_cache(maxsize=4)
def _group_ends(path: str) -> list[int]:
    with open_parquet(Path(path)) as file:
        groups = range(file.metadata.num_row_groups)
        return list(accumulate(file.metadata.row_group(number).num_rows for number in groups))


def equal_images(locations: Sequence[Location]) -> list[list[int]]:
    """Group the positions of images with equal bytes.

    Size, known checksums and a few bytes are compared first, so that few images are read whole.
    """

    def digest(location: Location) -> Hashable:
        return hashlib.sha256(read_location(location)).digest()

    groups: list[list[int]] = []
    for same_size in _parted(range(len(locations)), locations, lambda location: location.size):
        checksums = [locations[index].has_checksum for index in same_size]
        key = _checksum if any(checksums) else _middle
        groups += (
            same
            for similar in _parted(same_size, locations, key)
            for same in _parted(similar, locations, digest)
        )
    return sorted(groups)


def _parted(
    group: Sequence[int], locations: Sequence[Location], key: Callable[[Location], Hashable]
) -> Iterable[list[int]]:
    if len(group) == 1:
        return [list(group)]
    parts: dict[Hashable, list[int]] = defaultdict(list)
    for index in group:
        try:
            parts[key(locations[index])].append(index)
        except OSError:  # reported later as a corrupt image
            parts[index, "unreadable"].append(index)
    return parts.values()


def _checksum(location: Location) -> Hashable:
    return location.stamp if location.has_checksum else zlib.crc32(read_location(location))


def _middle(location: Location) -> Hashable:
    skip = max(0, location.size - _SAMPLE) // 2
    part = location._replace(offset=location.offset + skip, size=min(_SAMPLE, location.size))
    return read_location(part)
