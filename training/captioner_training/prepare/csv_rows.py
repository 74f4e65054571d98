"""CSV as people write it: any usual delimiter, stray quotation marks, commas inside captions."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath

from captioner.readers import IMAGE_SUFFIXES

__all__ = ["Row", "csv_rows", "find_delimiter", "headless_width", "names_image"]

_DELIMITERS = (",", ";", "\t", "|")
_LONGEST_CELL = 1_000_000  # characters; a quotation mark that is never closed shows earlier


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: its cells, and the text that they were cut from."""

    line: int  # its first, from 1
    cells: list[str]
    text: str
    delimiter: str

    def tail(self, first: int) -> str:
        """Cell `first` and whatever follows it, as one text: an unquoted caption with commas."""
        if len(self.cells) <= first + 1:
            return self.cells[first] if first < len(self.cells) else ""
        return self.delimiter.join(self.spaced()[first:]).strip()

    def spaced(self) -> list[str]:
        """The cells with the spaces behind the delimiters, which may belong to a sentence."""
        return next(csv.reader(io.StringIO(self.text, newline=""), delimiter=self.delimiter))


def names_image(cell: str) -> bool:
    """Whether this is the name of an image file."""
    return PurePosixPath(cell.strip()).suffix.lower() in IMAGE_SUFFIXES


def find_delimiter(text: str, names: Sequence[str]) -> str:
    """Find the delimiter under which the first row is a header of `names`, or names an image.

    If under none, the header's words are of another language, and the second row tells.
    """
    lines = [*islice((line for line in text.splitlines() if line.strip()), 2), "", ""]

    def cells_of(line: str, delimiter: str) -> list[str]:
        row = next(csv_rows(line, delimiter=delimiter), None)
        return [cell.strip() for cell in row.cells] if row else []

    def fits(delimiter: str) -> tuple[int, bool, bool]:
        first, second = (cells_of(line, delimiter) for line in lines[:2])
        known = sum(cell.lower() in names for cell in first)
        images = (len(cells) > 1 and any(map(names_image, cells)) for cells in (first, second))
        return known, next(images), next(images)

    return max(_DELIMITERS, key=fits)  # of equals the first


def headless_width(rows: Sequence[Row]) -> int:
    """Count the columns of a table without a header.

    Commas inside captions make rows longer, never shorter. Where every row has one, followed by a
    space as in a sentence while the cells before it have none, what follows is the caption still.
    """
    long = [row for row in rows if len(row.cells) > 1]
    width = min((len(row.cells) for row in long), default=1)
    spaced = [row.spaced() for row in long]
    if any(len(cells) < width for cells in spaced):
        return width
    sentence = [all(cells[index].startswith(" ") for cells in spaced) for index in range(width)]
    if all(sentence[1:]):  # a table with a space behind every comma
        return width
    while width > 2 and sentence[width - 1]:
        width -= 1
    return width


def csv_rows(text: str, *, delimiter: str) -> Iterator[Row]:
    """Yield the rows that are not blank.

    A quotation mark that is opened and never closed would swallow the rows behind it; such a row
    is read as if quotation marks meant nothing.
    """
    csv.field_size_limit(_LONGEST_CELL)
    lines = io.StringIO(text, newline="").readlines()
    begin = 0
    while begin < len(lines):
        for end, cells in _well_quoted(lines, begin, delimiter):
            if any(map(str.strip, cells)):
                whole = "".join(lines[begin:end])
                yield Row(line=begin + 1, cells=cells, text=whole, delimiter=delimiter)
            begin = end
        if begin < len(lines):  # its quotation mark swallows other rows
            cells = [cell.strip() for cell in lines[begin].split(delimiter)]
            yield Row(line=begin + 1, cells=cells, text=lines[begin], delimiter=delimiter)
            begin += 1


def _well_quoted(
    lines: Sequence[str], begin: int, delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows from `begin` on, each with the line it ends before, up to one that is not."""
    source = (lines[index] for index in range(begin, len(lines)))
    reader = csv.reader(source, delimiter=delimiter, skipinitialspace=True)
    start = begin
    try:
        for cells in reader:
            end = begin + reader.line_num
            if any(_begins_row(line, delimiter) for line in lines[start + 1 : end]):
                return
            yield end, cells
            start = end
    except csv.Error:  # a cell without an end
        return


def _begins_row(line: str, delimiter: str) -> bool:
    return any(map(names_image, line.split(delimiter)[:-1]))
