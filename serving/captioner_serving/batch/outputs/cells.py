r"""Cells of CSV: escape formulas and control characters, and read the texts back exactly.

A formula may begin after any separator, because programs disagree about the separator of a file.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

from captioner.errors import DataError
from captioner.tables import decode_text, read_bytes
from captioner.terminal import printable

COLUMNS = ("image", "caption", "score", "alternatives", "model")
"""A table with these columns was written by this package."""
ADDED_COLUMNS = ("familiarity", "trust", "keywords")
"""Columns that tables of earlier versions lack."""

# The first characters of a formula, also in full width as Japanese keyboards write them.
_SIGN = "[=+@\uff1d\uff0b\uff0d\uff20-]"
# Invisible characters that may precede a formula: soft hyphens, joiners, marks, selectors.
_INVISIBLE = "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f"
_INVISIBLE += "\u3164\ufe00-\ufe0f\ufeff\uffa0"
_BEGIN = rf'((?:^|[,;|\n])[\s"{_INVISIBLE}]*)'  # the beginning of a cell; tabs are escaped
_FORMULA = re.compile(rf"{_BEGIN}(?='*{_SIGN})")
_DEFUSED = re.compile(rf"{_BEGIN}'(?='*{_SIGN})")
_ESCAPED = re.compile(r"\\(x[0-9a-f]{2}|u20[0-9a-f]{2}|t|r)")  # a character escaped by `printable`


def cell_of(text: str) -> str:
    r"""Return a text escaped for a cell.

    >>> print(cell_of("x;=1+1;.jpg"), cell_of("a\x1b.jpg"), cell_of(r"a\x1b.jpg"))
    x;'=1+1;.jpg a\x1b.jpg a\x5cx1b.jpg
    """
    text = printable(_ESCAPED.sub(r"\\x5c\1", text))
    return _FORMULA.sub(r"\1'", text)


def text_of(cell: str) -> str:
    r"""Return the text of a cell that `cell_of` wrote.

    >>> text_of("x;'=1+1;.jpg"), text_of(r"a\x5cx1b.jpg")
    ('x;=1+1;.jpg', 'a\\x1b.jpg')
    """

    def unescape(match: re.Match[str]) -> str:
        return {"t": "\t", "r": "\r"}.get(match[1]) or chr(int(match[1][1:], 16))

    return _ESCAPED.sub(unescape, _DEFUSED.sub(r"\1", cell))


def read_rows(path: Path) -> csv.DictReader[str]:
    """Read a .csv with a header, written by batch or a spreadsheet.

    Bytes that are not UTF-8 become surrogates.

    Raises DataError: the file cannot be read.
    """
    data = read_bytes(path, name=str(path))
    if b"\0" in data[:1000]:
        text, _ = decode_text(data, name=str(path))
    else:
        text = data.decode("utf-8-sig", "surrogateescape")
    first = text.partition("\n")[0]
    csv.field_size_limit(sys.maxsize)
    return csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t|", key=first.count))


def own_cells(path: Path, column: str) -> list[str] | None:
    """Return a column of a .csv that this package wrote; None if another program wrote it.

    Raises DataError: the file cannot be read, or lacks the column.
    """
    try:
        rows = read_rows(path)
        names = rows.fieldnames or ()
        if not set(COLUMNS) <= set(names):
            return None
        if column not in names:
            raise DataError(f"{path} has no column {column!r}; it has {', '.join(names)}")
        return [text_of(row[column] or "") for row in rows]
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error
