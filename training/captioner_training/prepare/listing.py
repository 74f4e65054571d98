"""What a reader gets and returns: arguments, listed images, and the problems found in them."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import NamedTuple

from captioner.shared.files import replace_file
from captioner.shared.paths import expanded
from captioner.shared.tables import Source, decode_text, read_bytes
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.files import Location
from captioner_training.prepare.splits import absolute

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


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `captioner prepare KIND`."""

    paths: Sequence[str]  # a folder, or files, each as [SPLIT=]FILE
    images: Sequence[str] = ()  # places of the images; empty: the folders of the files
    columns: Columns = field(default_factory=Columns)  # columns of a table


def split_argument(argument: str) -> tuple[str | None, Path]:
    """Parse [SPLIT=]FILE. File names may contain an equals sign."""
    split, equals, name = argument.partition("=")
    if equals and split and "/" not in split and not expanded(argument).exists():
        return split, expanded(name)
    return None, expanded(argument)


def common_folder(paths: Sequence[Path]) -> Path:
    """Return the folder that contains all files. Links are not followed."""
    return Path(os.path.commonpath([absolute(path.parent) for path in paths]))


class ListedImage(NamedTuple):
    """An image as a table, a JSON file or a folder lists it."""

    id: int | str
    file_name: str
    captions: tuple[str, ...]
    split: str | None = None
    licence: str | None = None
    rows: tuple[str, ...] = ()  # the place of each caption in its file, such as "line 3"
    location: Location | None = None  # None: search by name

    def row(self, caption: int = 0) -> str:
        """Return the place of a caption in its file; "" if unknown."""
        return self.rows[caption] if caption < len(self.rows) else ""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images and captions that a data set lists, before the image files are searched."""

    images: list[ListedImage]
    places: Sequence[str | Path]  # where to search the image files
    has_table: bool = True  # a table names the images, so links must not lead out of the places


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
        """Write problems.csv and return its path.

        If there is nothing to list, the file is removed and the result is None.
        """
        rows = [
            (
                problem.row,
                problem.file,
                kind if problem.example in ("", problem.file) else f"{kind}: {problem.example}",
            )
            for kind, problems in (*self._problems.items(), *self._notes.items())
            for problem in problems
            if problem.file
        ]
        path = folder / PROBLEMS_FILE
        if not rows:
            path.unlink(missing_ok=True)
            return None
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
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


def has_word(text: str) -> bool:
    """Whether a text has a letter or digit of any script."""
    return any(map(str.isalnum, text))


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
