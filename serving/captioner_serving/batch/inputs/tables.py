"""Paths and URLs from lists and tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from io import BufferedReader

from captioner.errors import DataError
from captioner.shared.tables import JSON_TABLES, read_json_rows, read_lines, read_table
from captioner_serving.batch.inputs.photos import LostPhoto, name_on_disk
from captioner_serving.batch.outputs.formats import DEFUSED

_LONGEST = 1 << 20  # bytes of a name in a list; file systems take 4,096


def list_names(path: str, *, root: str | None = None) -> Iterator[str]:
    """Yield the names in a list, or standard input ("-"), without quotation marks around them.

    A pipe is read while it is written. `root` is the base folder of relative names.
    """
    label = "standard input" if path == "-" else path
    try:
        # Standard input stays open, because several lists may be read from it.
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            if b"\0" in file.peek():  # UTF-16
                lines = iter(read_lines(file.read(), name=label))
            else:
                lines = _lines(file, label)
            for line in lines:
                if name := line.removeprefix("\ufeff"):
                    yield name_on_disk(_unquoted(name, root), root)
    except OSError as error:
        raise DataError(f"{label} cannot be read: {error.strerror}") from error


def _lines(file: BufferedReader, label: str) -> Iterator[str]:
    """Yield lines, which may end with CR, LF or both."""
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise DataError(
                f"{label} has a name of {_LONGEST:,} bytes or more: use a list of photos"
            )
        yield from os.fsdecode(line.rstrip(b"\n")).split("\r")


def _unquoted(name: str, root: str | None) -> str:
    """Remove quotation marks around a name, unless there is a file of the whole name."""
    quoted = len(name) > 2 and name[0] == name[-1] and name[0] in "\"'"
    if quoted and not os.path.lexists(os.path.join(root or "", name)):
        return name[1:-1]
    return name


def table_names(path: str, column: str, *, root: str | None = None) -> Iterator[str | LostPhoto]:
    """Yield the names in a column of a table; a LostPhoto for an empty cell."""
    for number, value in enumerate(_cells(path, column), start=1):
        if value:
            plain = DEFUSED.sub(r"\1", value)  # a table of ours has apostrophes before formulas
            is_plain = plain != value and os.path.lexists(os.path.join(root or "", plain))
            yield name_on_disk(plain if is_plain else value, root)
        else:
            yield LostPhoto(name=f"{path}#{number}", reason=f"{path}: row {number} has no {column}")


def _cells(path: str, column: str) -> list[str]:
    suffix = os.path.splitext(path)[1].lower()
    if suffix in JSON_TABLES:
        for number, row in read_json_rows(path, name=path):
            if not isinstance(row, Mapping):
                raise DataError(f"{path}: line {number} is not a JSON object")
    return list(read_table(path, name=path, columns=[column])[column])
