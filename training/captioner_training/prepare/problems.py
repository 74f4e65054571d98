"""The problems and notes of a data set, problems.csv, and text in captions and names."""

from __future__ import annotations

import codecs
import csv
import io
import re
from html import unescape
from pathlib import Path
from typing import NamedTuple

from captioner.shared.files import replace_file
from captioner.shared.tables import Source, decode_text, read_bytes

PROBLEMS_FILE = "problems.csv"
"""File beside the manifest that lists everything that was left out or should be checked."""

_EXAMPLES = 5  # examples in a message
_REMEDIES = {
    "missing image": "name the folders, tar and zip files of photos with --images; download photos "
    "given by URL",
    "image without caption": "add photo.txt beside photo.jpg, or a row to the table",
    "row with too many cells": "put text that contains the separator into quotation marks",
}
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")
_CONTROL = dict.fromkeys([*range(32), 127], " ")


class _Problem(NamedTuple):
    """A problem: its text, the file it is about, and the row that names the file."""

    example: str
    file: str
    row: str


class Problems:
    """The problems and notes of a data set, by kind. Problems stop the preparation."""

    def __init__(self) -> None:
        self._problems: dict[str, list[_Problem]] = {}
        self._notes: dict[str, list[_Problem]] = {}

    def __bool__(self) -> bool:
        return bool(self._problems)

    @property
    def counts(self) -> dict[str, int]:
        """The number of problems of each kind."""
        return {kind: len(problems) for kind, problems in self._problems.items()}

    def add(self, kind: str, example: str, *, file: str = "", row: str = "") -> None:
        """Add a problem. `example` is its text, and `row` is the place that names `file`."""
        self._problems.setdefault(kind, []).append(_Problem(example, file or example, row))

    def note(self, kind: str, example: str = "", *, file: str = "", row: str = "") -> None:
        """Add a note. If it has a `file`, problems.csv lists it."""
        self._notes.setdefault(kind, []).append(_Problem(example, file, row))

    def notes(self) -> list[str]:
        """Return one line per kind of note."""
        return [_line(kind, notes) for kind, notes in self._notes.items()]

    def report(self) -> str:
        """Return one line per kind of problem, with its remedy below."""
        lines = []
        for kind, problems in self._problems.items():
            lines.append(f"  {_line(kind, problems)}")
            if kind in _REMEDIES:
                lines.append(f"    {_REMEDIES[kind]}")
        return "\n".join(lines)

    def write(self, folder: Path) -> Path | None:
        """Write problems.csv and return its path; if there is nothing to list, remove it."""
        rows = [
            (row, file, kind if example in ("", file) else f"{kind}: {example}")
            for kind, problems in (*self._problems.items(), *self._notes.items())
            for example, file, row in problems
            if file
        ]
        path = folder / PROBLEMS_FILE
        if not rows:
            path.unlink(missing_ok=True)
            return None
        table = csv.writer(text := io.StringIO(), lineterminator="\n")
        table.writerow(["row", "file", "problem"])
        table.writerows([_harmless(cell) for cell in row] for row in rows)
        with replace_file(path) as file:  # spreadsheets recognize UTF-8 by the BOM
            file.write(codecs.BOM_UTF8 + text.getvalue().encode("utf-8", "backslashreplace"))
        return path


def _harmless(cell: str) -> str:
    """Return a cell that spreadsheets do not execute as a formula."""
    return f"'{cell}" if cell.lstrip().startswith(("=", "+", "-", "@")) else cell


def _line(kind: str, problems: list[_Problem]) -> str:
    examples = list(dict.fromkeys(problem.example for problem in problems if problem.example))
    if not examples:
        return kind
    more = "; ..." if len(examples) > _EXAMPLES else ""
    return f"{kind}: {len(problems):,} ({'; '.join(examples[:_EXAMPLES])}{more})"


def clean_caption(text: str) -> str:
    r"""Return a caption as one line of valid UTF-8, its HTML entities replaced.

    >>> clean_caption("A dog &amp; a\n cat ")
    'A dog & a cat'
    """
    text = _ENTITY.sub(lambda entity: unescape(entity[0]), text)
    return " ".join(text.translate(_CONTROL).encode("utf-8", "replace").decode().split())


def valid_text(name: str) -> str:
    r"""Escape bytes that are not UTF-8, which names of files may have.

    >>> valid_text("caf\udce9.jpg")
    'caf\\udce9.jpg'
    """
    return name.encode("utf-8", "backslashreplace").decode()


def read_text(source: Source, problems: Problems, *, name: str) -> str:
    """Read a text file, and note if it is not UTF-8."""
    text, encoding = decode_text(read_bytes(source, name=name), name=name)
    if encoding == "cp1252":
        problems.note("read as Windows-1252, not UTF-8: check accents", name)
    return text
