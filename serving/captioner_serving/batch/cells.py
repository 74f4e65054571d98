r"""Texts in cells of CSV: no spreadsheet runs them, none steers a terminal, and they come back.

A program that separates by semicolons sees other cells than one that separates by commas: a formula
may begin behind any separator.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable

from captioner.terminal import printable

__all__ = ["COLUMNS", "FORMULAS", "cell_of", "read_rows", "text_of"]

COLUMNS = ("image", "caption", "score", "alternatives", "model")
"""A table that has these was written here; `familiarity` was added later."""

FORMULAS = "formulas"
"""The column that says of a table of ours that its texts are kept as they are."""

# What a spreadsheet takes a cell for a formula by; the wide ones are those of Japanese keyboards.
_SIGN = "[=+@\uff1d\uff0b\uff0d\uff20-]"
# What may stand before it and is not seen: soft hyphens, joiners, marks, selectors.
_UNSEEN = "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f"
_UNSEEN += "\u3164\ufe00-\ufe0f\ufeff\uffa0"
_BEGIN = rf'((?:^|[,;|\n])[\s"{_UNSEEN}]*)'  # of a cell; tabs are written out
_FORMULA = re.compile(rf"{_BEGIN}(?='*{_SIGN})")
_DEFUSED = re.compile(rf"{_BEGIN}'(?='*{_SIGN})")
_WRITTEN_OUT = re.compile(r"\\(x[0-9a-f]{2}|u20[0-9a-f]{2}|t|r)")  # a sign, by `printable`


def cell_of(text: str) -> str:
    r"""Write a text for a cell.

    >>> print(cell_of("x;=1+1;.jpg"), cell_of("a\x1b.jpg"), cell_of(r"a\x1b.jpg"))
    x;'=1+1;.jpg a\x1b.jpg a\x5cx1b.jpg
    """
    text = printable(_WRITTEN_OUT.sub(r"\\x5c\1", text))
    return _FORMULA.sub(r"\1'", text)


def text_of(cell: str) -> str:
    r"""Read a cell that `cell_of` wrote.

    >>> text_of("x;'=1+1;.jpg"), text_of(r"a\x5cx1b.jpg")
    ('x;=1+1;.jpg', 'a\\x1b.jpg')
    """
    return _WRITTEN_OUT.sub(_sign, _DEFUSED.sub(r"\1", cell))


def read_rows(lines: Iterable[str], *, delimiter: str) -> tuple[csv.DictReader[str], bool]:
    """Read a table with cells of any size; whether its texts went through `cell_of`."""
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(lines, delimiter=delimiter)
    names = set(rows.fieldnames or ())
    return rows, names.issuperset(COLUMNS) and FORMULAS not in names


def _sign(found: re.Match[str]) -> str:
    return {"t": "\t", "r": "\r"}.get(found[1]) or chr(int(found[1][1:], 16))
