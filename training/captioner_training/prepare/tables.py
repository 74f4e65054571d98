"""Data sets that are a table: a CSV file, or a JSON object a line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError, DataError
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.samples import Entry

__all__ = ["Columns", "read_csv", "read_jsonl"]

# What tables call these columns when the user does not say.
_IMAGE = ("image", "file_name", "filename", "image_path", "filepath", "path")
_CAPTION = ("caption", "captions", "text", "sentence", "sentences", "raw")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns to read; None: found by their usual names."""

    image: str | None = None
    captions: tuple[str, ...] = ()
    split: str | None = None

    def find(self, names: Sequence[str], path: Path) -> Columns:
        """Choose among the columns that there are.

        Raises:
            ConfigError: a named column is not there, or none has a usual name.

        """
        have = f"{path} has the columns {', '.join(names)}"
        for name in filter(None, (self.image, *self.captions, self.split)):
            if name not in names:
                raise ConfigError(f"there is no column {name!r}: {have}")
        image = self.image or next((name for name in _IMAGE if name in names), None)
        caption = next((name for name in _CAPTION if name in names and name != image), None)
        captions = self.captions or ((caption,) if caption else ())
        if image is None:
            raise ConfigError(f"{have}: which one names the image? --image-column NAME")
        if not captions:
            raise ConfigError(f"{have}: which one is the caption? --caption-column NAME")
        split = self.split or ("split" if "split" in names else None)
        return Columns(image=image, captions=captions, split=split)


def read_csv(
    path: Path, columns: Columns, problems: Problems, *, delimiter: str | None = None
) -> list[Entry]:
    """Read a CSV file with a header; rows of the same image belong together.

    Raises:
        ConfigError: the columns are not there, or the delimiter is not one character.
        DataError: the file cannot be read as such a table.

    """
    delimiter = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    if len(delimiter) != 1:
        raise ConfigError(f"--delimiter {delimiter!r}: must be one character")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter=delimiter, skipinitialspace=True)
            names = [name.strip() for name in rows.fieldnames or ()]
            rows.fieldnames = names
            numbered = ((f"line {rows.line_num}", row) for row in rows)
            return _entries(numbered, columns.find(names, path), problems)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no CSV table in UTF-8: {error}") from error


def read_jsonl(path: Path, columns: Columns, problems: Problems) -> list[Entry]:
    """Read a JSON object a line; rows of the same image belong together.

    Raises:
        ConfigError: the columns are not in the first object.
        DataError: the file cannot be read.

    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            rows = list(_objects(file, problems))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8: {error}") from error
    if not rows:
        raise DataError(f"{path} has no JSON objects: one a line is expected")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return _entries(iter(rows), columns.find(names, path), problems)


def _objects(lines: Iterator[str], problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            yield f"line {number}", row
        else:
            problems.add("incomplete row", f"line {number} is no JSON object")


def _entries(
    rows: Iterator[tuple[str, Mapping[str, Any]]], columns: Columns, problems: Problems
) -> list[Entry]:
    found: dict[tuple[str, str | None], list[str]] = {}
    for place, row in rows:
        image = row.get(columns.image or "")
        if not isinstance(image, str) or not image.strip():
            problems.add("incomplete row", f"{place} names no image")
            continue
        split = row.get(columns.split) if columns.split else None
        if columns.split and (not isinstance(split, str) or not split.strip()):
            problems.add("incomplete row", f"{place} names no split")
            continue
        captions = found.setdefault((image.strip(), split), [])
        for name in columns.captions:
            captions += _captions(row.get(name))
    return [
        Entry(id=image, file_name=image, captions=tuple(captions), split=split)
        for (image, split), captions in found.items()
    ]


def _captions(value: object) -> list[str]:
    """Read one caption, or a list of them; a CSV cell may hold a JSON list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            decoded = json.loads(value)
        except ValueError:
            decoded = value
        value = decoded
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [one if isinstance(one, str) else "" for one in value]
    return []
