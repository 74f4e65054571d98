"""Paths and URLs out of lists and tables, row by row."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from typing import Any

from captioner.errors import DataError, MissingExtraError
from captioner_serving.batch.inputs.photos import LostPhoto
from captioner_serving.batch.outputs.records import read_rows, text_of

__all__ = ["TABLES", "list_names", "table_names"]

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

_CHUNK = 1 << 16
_LONGEST = 1 << 20  # bytes of a name in a list; file systems take 4,096
_BOM = b"\xef\xbb\xbf"  # Windows programs begin a text with it


def list_names(path: str, *, null: bool) -> Iterator[str]:
    """Read a list: a name a line, or ended by NUL, so that it may hold a line break.

    Args:
        path: a file, or "-" for standard input.
        null: whether NUL ends a name.

    Raises DataError: the list cannot be read.
    """
    label = "standard input" if path == "-" else path
    ending = b"\0" if null else b"\n"
    try:
        # Standard input stays open for whoever reads behind the list.
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            rest, mark = b"", _BOM
            # read1 answers with what there is: a list may come from a pipe that is still at work.
            while chunk := file.read1(_CHUNK):
                *names, rest = (rest + chunk.removeprefix(mark)).split(ending)
                mark = b""
                yield from _decoded(names, null=null)
                if len(rest) > _LONGEST:
                    raise DataError(
                        f"{label} has a name of more than {_LONGEST:,} bytes: is it a list of "
                        f"photos{'' if null else ', and is --null missing'}?"
                    )
            yield from _decoded([rest], null=null)
    except OSError as error:
        raise DataError(f"{label} cannot be read: {error.strerror}") from error


def _decoded(names: list[bytes], *, null: bool) -> Iterator[str]:
    for name in names:
        if text := os.fsdecode(name if null else name.rstrip(b"\r")):
            yield text


def table_names(path: str, column: str) -> Iterator[str | LostPhoto]:
    """Read one column of a CSV, TSV, JSONL or Parquet file.

    A row without a name is a LostPhoto: it is counted, and the others are captioned.

    Raises:
        DataError: the table cannot be read, or has no such column.
        MissingExtraError: Parquet, without the extra that reads it.
    """
    suffix = os.path.splitext(path)[1].lower()
    read = {".parquet": _parquet, ".csv": _csv, ".tsv": _csv}.get(suffix, _jsonl)
    try:
        for number, value in enumerate(read(path, column), start=1):
            if isinstance(value, str) and value:
                yield value
            else:
                yield LostPhoto(
                    name=f"{path}#{number}", reason=f"{path}: row {number} has no {column}"
                )
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error


def _csv(path: str, column: str) -> Iterator[Any]:
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows, defused = read_rows(file, delimiter="\t" if path.lower().endswith(".tsv") else ",")
        _check_column(path, column, list(rows.fieldnames or ()))
        for row in rows:
            cell = row[column]
            yield text_of(cell) if defused and cell is not None else cell


def _jsonl(path: str, column: str) -> Iterator[Any]:
    with open(path, "rb") as file:
        for number, line in enumerate(filter(bytes.strip, file), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"row {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"row {number} is not a JSON object")
            if number == 1:
                _check_column(path, column, list(row))
            yield row.get(column)


def _parquet(path: str, column: str) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingExtraError(f"reading {path}", "parquet") from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_column(path, column, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=4096, columns=[column]):
                yield from batch.column(0).to_pylist()
    except ArrowException as error:  # of which some are no ValueError
        raise ValueError(error) from error


def _check_column(path: str, column: str, columns: list[str]) -> None:
    if column not in columns:
        raise DataError(f"{path} has no column {column!r}; it has {', '.join(columns)}")
