"""What a data set lists: its images with their captions, and what is wrong with them."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any, NamedTuple

from captioner.errors import DataError
from captioner.paths import there_is_no

__all__ = ["ListedImage", "Problems", "has_word", "parse_json", "read_json", "read_text"]

_EXAMPLES = 5  # enough to see what they have in common
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32",
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


class Problems:
    """Problems by kind, which stop the preparation, and notes, which do not."""

    def __init__(self) -> None:
        self._problems: dict[str, list[str]] = {}
        self._notes: dict[str, list[str]] = {}
        self._hints: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._problems)

    @property
    def counts(self) -> dict[str, int]:
        """The number of problems of each kind."""
        return {kind: len(examples) for kind, examples in self._problems.items()}

    def add(self, kind: str, example: str, *, count: int = 1) -> None:
        """Count a problem, or several; `example` names the file, id or line."""
        self._problems.setdefault(kind, []).extend([example] * count)

    def explain(self, kind: str, hint: str) -> None:
        """Say what may help against a kind of problem."""
        self._hints[kind] = f"{self._hints[kind]}; {hint}" if kind in self._hints else hint

    def note(self, kind: str, example: str = "") -> None:
        """Say something that a reader should know, though nothing is wrong with the data."""
        self._notes.setdefault(kind, []).append(example)

    def notes(self) -> list[str]:
        """Give all notes, a line a kind."""
        return [_line(kind, examples) for kind, examples in self._notes.items()]

    def refuse(self, kind: str, name: str) -> None:
        """Raise DataError for a file, called `name`, that has a kind of problem."""
        if kind in self._problems:
            raise DataError(f"{name} cannot be used: {_line(kind, self._problems[kind])}")

    def report(self) -> str:
        """Give all problems, a line a kind, each with its hint below."""
        lines = []
        for kind, examples in self._problems.items():
            lines.append(f"  {_line(kind, examples)}")
            if kind in self._hints:
                lines.append(f"    {self._hints[kind]}")
        return "\n".join(lines)


def _line(kind: str, examples: list[str]) -> str:
    different = list(dict.fromkeys(filter(None, examples)))
    if not different:
        return kind
    more = "; ..." if len(different) > _EXAMPLES else ""
    return f"{kind}: {len(examples):,} ({'; '.join(different[:_EXAMPLES])}{more})"


def has_word(text: str) -> bool:
    """Whether there is a letter or a digit of any script in a text: emoji and dots are no words."""
    return any(map(str.isalnum, text))


def read_text(path: Path, problems: Problems, *, name: str | None = None) -> str:
    """Read a text file in UTF-8, in UTF-16 or UTF-32 with their marks, or in Windows-1252.

    The last is a guess, which is noted in `problems` under `name`.

    Raises:
        DataError: it cannot be read, or it is not a text in any of these encodings.

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
