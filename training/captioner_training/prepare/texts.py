"""Text files in whatever encoding they came in, and JSON."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner.paths import there_is_no
from captioner_training.prepare.listing import Problems

__all__ = ["has_word", "parse_json", "read_json", "read_text"]

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


def parse_json(text: str | bytes, default: Any = None) -> Any:
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
