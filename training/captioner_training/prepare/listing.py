"""What a data set lists: its images with their captions, and what is wrong with them."""

from __future__ import annotations

import codecs
import csv
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

from captioner.errors import DataError
from captioner.files import replace_file
from captioner.paths import there_is_no

__all__ = [
    "PROBLEMS_FILE",
    "ListedImage",
    "Problems",
    "has_word",
    "parse_json",
    "read_json",
    "read_text",
]

PROBLEMS_FILE = "problems.csv"
"""Beside the manifest: everything that was left out or should be looked at, a row each."""

_EXAMPLES = 5  # enough to see what they have in common
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_FALLBACK_NOTE = "read as Windows-1252, because it is neither UTF-8 nor UTF-16; check its accents"
# Control characters that no caption has: tabs and line ends are not among them.
_BINARY = frozenset(map(chr, [*range(9), *range(14, 32), 127]))


class ListedImage(NamedTuple):
    """An image as a table, a json file or a folder names it."""

    id: int | str
    file_name: str
    captions: tuple[str, ...]
    split: str | None = None  # None: drawn by Fractions
    licence: str | None = None
    rows: tuple[str, ...] = ()  # where each caption stands, if that is known
    location: Any = None  # an originals.Location; None: it is looked for by its name

    def row(self, caption: int = 0) -> str:
        """Say where a caption stands, "" where that is not known."""
        return self.rows[caption] if caption < len(self.rows) else ""


class _Problem(NamedTuple):
    """One thing: what is said of it, the file that it is about, where that file is named."""

    example: str
    file: str
    row: str


# What to do, as problems.csv says it.
_REMEDIES = {
    "missing image": "put the photo where the row says, or correct its name there",
    "corrupt image": "copy or download the photo again, or take it out",
    "image without caption": "write a caption, or take the photo out",
    "empty caption": "write the caption, or delete the row",
    "incomplete row": "name the photo in this row, or delete the row",
    "quotation mark that is never closed": "close it, or take it away",
    "row with too many cells": "put quotation marks around the text",
    "caption that is no text": "write it as text",
    "caption of an unknown image": "add the photo, or delete the caption",
    "unreadable captions": "save the file again as UTF-8",
    "duplicate id": "give each photo an id of its own",
    "image in two splits": "leave it in one of them",
}


class Problems:
    """Problems by kind, which stop the preparation, and notes, which do not."""

    def __init__(self) -> None:
        self._problems: dict[str, list[_Problem]] = {}
        self._notes: dict[str, list[_Problem]] = {}
        self._hints: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._problems)

    @property
    def counts(self) -> dict[str, int]:
        """The number of problems of each kind."""
        return {kind: len(each) for kind, each in self._problems.items()}

    def add(self, kind: str, example: str, *, file: str = "", row: str = "") -> None:
        """Count a problem; `example` says it in the terminal, of the file that a row names."""
        self._problems.setdefault(kind, []).append(_Problem(example, file or example, row))

    def explain(self, kind: str, hint: str) -> None:
        """Say what may help against a kind of problem."""
        self._hints[kind] = f"{self._hints[kind]}; {hint}" if kind in self._hints else hint

    def note(
        self, kind: str, example: str = "", *, file: str = "", row: str = "", remedy: str = ""
    ) -> None:
        """Say something that a reader should know, though nothing is left out.

        What is of a `file` stands in problems.csv too, with its `remedy`.
        """
        self._notes.setdefault(kind, []).append(_Problem(example, file, row))
        if remedy:
            self._hints[kind] = remedy

    def notes(self) -> list[str]:
        """Give all notes, a line a kind."""
        return [_line(kind, each) for kind, each in self._notes.items()]

    def refuse(self, kind: str, name: str) -> None:
        """Raise DataError for a file, called `name`, that has a kind of problem."""
        if kind in self._problems:
            raise DataError(f"{name} cannot be used: {_line(kind, self._problems[kind])}")

    def report(self) -> str:
        """Give all problems, a line a kind, each with its hint below."""
        lines = []
        for kind, each in self._problems.items():
            lines.append(f"  {_line(kind, each)}")
            if kind in self._hints:
                lines.append(f"    {self._hints[kind]}")
        return "\n".join(lines)

    def write(self, folder: Path) -> Path | None:
        """Write problems.csv, for a spreadsheet; None, and no such file, where there is nothing.

        Raises OutputError: it cannot be written.
        """
        rows = [
            (one.row, one.file, kind if one.example in ("", one.file) else f"{kind}: {one.example}",
             _REMEDIES.get(kind) or self._hints.get(kind, ""))
            for kind, each in (*self._problems.items(), *self._notes.items())
            for one in each
            if one.file
        ]  # fmt: skip
        path = folder / PROBLEMS_FILE
        if not rows:
            path.unlink(missing_ok=True)
            return None
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["row", "file", "what", "what to do"])
        table.writerows([_harmless(cell) for cell in row] for row in rows)
        with replace_file(path) as file:  # with the mark by which spreadsheets know UTF-8
            file.write(codecs.BOM_UTF8 + text.getvalue().encode("utf-8", "backslashreplace"))
        return path


def _harmless(cell: str) -> str:
    """Write a cell so that no spreadsheet takes it for a formula: names are strangers'."""
    return f"'{cell}" if cell.lstrip().startswith(("=", "+", "-", "@")) else cell


def _line(kind: str, problems: list[_Problem]) -> str:
    different = list(dict.fromkeys(one.example for one in problems if one.example))
    if not different:
        return kind
    more = "; ..." if len(different) > _EXAMPLES else ""
    return f"{kind}: {len(problems):,} ({'; '.join(different[:_EXAMPLES])}{more})"


def has_word(text: str) -> bool:
    """Whether there is a letter or a digit of any script in a text: emoji and dots are no words."""
    return any(map(str.isalnum, text))


def read_text(path: Path, problems: Problems, *, name: str | None = None) -> str:
    """Read a text file in UTF-8, in UTF-16 with its mark, or in Windows-1252.

    The last is a guess, which is noted in `problems` under `name`.

    Raises DataError: it cannot be read, or it is not a text in any of these encodings.
    """
    name = name or str(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(there_is_no("file", path)) from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder: name the file in it") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    marked = next((one for mark, one in _MARKS.items() if content.startswith(mark)), None)
    for encoding in (marked,) if marked else ("utf-8", "cp1252"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        odd = next((sign for sign in text if sign in _BINARY), None)
        if odd is None:
            if encoding == "cp1252":
                problems.note(_FALLBACK_NOTE, name)
            return text
        if encoding != "cp1252" and "\0" not in text:
            raise DataError(f"{name} has {odd!a}, a character that steers a terminal: take it out")
    raise DataError(f"{name} is not a text in UTF-8: save it again as UTF-8")


def parse_json(text: str, default: Any = None) -> Any:
    """Parse JSON; `default` for what is none, or is nested deeper than Python can read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return default


def read_json(path: Path, problems: Problems) -> Any:
    """Read a JSON file. Raises DataError."""
    try:
        return json.loads(read_text(path, problems))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
