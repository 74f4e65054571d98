"""Parquet files, and the photos inside of them, row by row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from captioner.errors import DataError, MissingExtraError
from captioner.paths import there_is_no

__all__ = ["is_parquet", "opened", "photo_bytes", "split_of"]

_PART = re.compile(r"(\w+?)-\d+-of-\d+\.parquet")


def is_parquet(path: str) -> bool:
    """Whether a file is called so."""
    return path.lower().endswith(".parquet")


def split_of(path: Path) -> str | None:
    """Give the split that the name of a file of Hugging Face's begins with."""
    named = _PART.fullmatch(path.name)
    return named[1] if named else None


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file, as pyarrow's ParquetFile.

    Raises:
        DataError: it is not there, or cannot be read.
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


def photo_bytes(path: str, column: str, row: int) -> bytes:
    """Read a photo; its row group is kept for the next one. Raises DataError."""
    ends = _group_ends(path)
    group = next(at for at, end in enumerate(ends) if row < end)
    first = ends[group - 1] if group else 0
    photo: bytes = _photos(path, column, group)[row - first].as_py()["bytes"]
    return photo


@lru_cache(maxsize=2)
def _photos(path: str, column: str, group: int) -> Sequence[Any]:
    with opened(Path(path)) as file:
        # Not columns=[column]: that of a structure is called by its parts.
        photos: Sequence[Any] = file.read_row_group(group).column(column)
        return photos


@lru_cache(maxsize=4)
def _group_ends(path: str) -> list[int]:
    with opened(Path(path)) as file:
        groups = range(file.metadata.num_row_groups)
        return list(accumulate(file.metadata.row_group(one).num_rows for one in groups))
