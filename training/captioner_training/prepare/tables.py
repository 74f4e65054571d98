"""Data sets that are a table: a CSV file, or a JSON object a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError, DataError
from captioner.paths import did_you_mean
from captioner_training.prepare.csv_rows import (
    Row,
    csv_rows,
    find_delimiter,
    headless_width,
    names_image,
)
from captioner_training.prepare.images import ListedImage
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.splits import SPLIT_NAMES
from captioner_training.prepare.texts import read_text

__all__ = ["Columns", "read_csv", "read_jsonl"]

# What tables call these columns when the user does not say; capitals do not matter.
_IMAGE = (
    "image", "file_name", "filename", "image_path", "filepath", "path", "image_name", "image_file",
    "file", "photo", "img",
)  # fmt: skip
_CAPTION = (
    "caption", "captions", "text", "sentence", "sentences", "raw", "comment", "description",
    "alt_text",
)  # fmt: skip
_NUMBERED = re.compile(r"(caption|comment|sentence)[ _-]?\d+", re.IGNORECASE)  # caption_1, ...
_SPLIT = "split"
_DELIMITERS = {"\\t": "\t", "tab": "\t"}  # as they are typed in a shell
_ROWS_LOOKED_AT = 50  # to tell which column of a table without a header is which


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns to read; None: found by their usual names."""

    image: str | None = None
    captions: tuple[str, ...] = ()
    split: str | None = None

    def named(self) -> list[str]:
        """The columns that the user has named."""
        return [name for name in (self.image, *self.captions, self.split) if name]

    def find(self, names: Sequence[str], path: Path) -> Columns:
        """Choose among the columns that there are.

        Raises:
            ConfigError: a named column is not there, or none has a usual name.

        """
        have = f"{path} has the columns {', '.join(names)}"
        for name in self.named():
            if name not in names:
                near = did_you_mean(name, names)
                raise ConfigError(f"there is no column {name!r}{near or ':'} {have}")
        image = self.image or _first(_IMAGE, names, ())
        caption = _first(_CAPTION, names, (image, self.split))
        numbered = tuple(name for name in names if _NUMBERED.fullmatch(name))
        captions = self.captions or numbered or ((caption,) if caption else ())
        if image is None:
            raise ConfigError(f"{have}: which one names the image? --image-column NAME")
        if not captions:
            raise ConfigError(f"{have}: which one is the caption? --caption-column NAME")
        split = self.split or _first((_SPLIT,), names, (image, *captions))
        return Columns(image=image, captions=captions, split=split)


def _first(usual: Sequence[str], names: Sequence[str], but: Sequence[str | None]) -> str | None:
    by_lower = {name.lower(): name for name in reversed(names) if name not in but}
    return next((by_lower[name] for name in usual if name in by_lower), None)


def read_csv(
    path: Path, columns: Columns, problems: Problems, *, delimiter: str | None = None
) -> list[ListedImage]:
    """Read a CSV file; rows of the same image belong together.

    Raises:
        ConfigError: the columns are not there, or the delimiter is not one character.
        DataError: the file cannot be read as such a table.

    """
    text = read_text(path, problems)
    if delimiter is None:
        named = [name.lower() for name in columns.named()]
        delimiter = find_delimiter(text, [*_IMAGE, *_CAPTION, *named])
    delimiter = _DELIMITERS.get(delimiter, delimiter)
    if len(delimiter) != 1:
        raise ConfigError(f"--delimiter {delimiter!r}: must be one character")
    rows = list(csv_rows(text, delimiter=delimiter))
    if not rows:
        raise DataError(f"{path} is empty")
    if any(map(names_image, rows[0].cells)):
        names = [str(number) for number in range(1, headless_width(rows) + 1)]
        columns = _headless(rows, names, columns, path, problems)
    else:
        names = [name.strip() for name in rows[0].cells]
        columns, rows = columns.find(names, path), rows[1:]
        if not columns.split:
            _note_splits(rows, names, problems)
    return _listed(_cells(rows, names, columns, problems), columns, problems)


def _headless(
    rows: Sequence[Row], names: Sequence[str], columns: Columns, path: Path, problems: Problems
) -> Columns:
    """Tell the columns of a table without a header by what is in them; they are called 1, 2, ..."""
    looked_at = [row.cells for row in rows[:_ROWS_LOOKED_AT]]
    values = {
        name: [row[index].strip() for row in looked_at if index < len(row)]
        for index, name in enumerate(names)
    }
    if columns.named():
        found = columns
    else:
        image = max(names, key=lambda name: sum(map(names_image, values[name])))
        split = next(
            (name for name in names if {one.lower() for one in values[name]} <= SPLIT_NAMES), None
        )
        others = [name for name in names if name not in (image, split)]
        longest = max(others, key=lambda name: sum(map(len, values[name])), default=None)
        found = Columns(image=image, captions=(longest,) if longest else (), split=split)
    if not (found.image and found.captions):
        raise ConfigError(
            f"{path} has no header, so its columns are called {', '.join(names)}: say which "
            "ones to read: --image-column 1 --caption-column 2"
        )
    found = found.find(names, path)
    split = f", {found.split} the split" if found.split else ""
    used = {found.image, *found.captions, found.split}
    rest = ", ".join(name for name in names if name not in used)
    problems.note(
        f"{path.name} has no header: column {found.image} is taken as the image, "
        f"{' and '.join(found.captions)} as the caption{split}"
        + (f"; not used: {rest}" if rest else "")
    )
    return found


def _note_splits(rows: Sequence[Row], names: Sequence[str], problems: Problems) -> None:
    """Say that a column has nothing but names of splits, and is not taken for one."""
    for index, name in enumerate(names):
        values = {row.cells[index].strip().lower() for row in rows if index < len(row.cells)}
        if values - {""} and values - {""} <= SPLIT_NAMES:
            problems.note(
                f"column {name} is not used, but looks like splits: --split-column {name}"
            )


def _cells(
    rows: Iterable[Row], names: Sequence[str], columns: Columns, problems: Problems
) -> Iterator[tuple[str, dict[str, str]]]:
    """Name the cells of each row; a caption in the last column may have unquoted delimiters."""
    last = len(names) - 1
    for row in rows:
        place, cells = f"line {row.line}", row.cells
        if any(cell.strip() for cell in cells[len(names) :]):
            if columns.captions != (names[last],):
                problems.add("row with too many cells", f"{place} has {len(cells)}")
                problems.explain(
                    "row with too many cells",
                    f"there are {len(names)} columns; a text with {row.delimiter!r} in it needs "
                    "quotation marks around it",
                )
                continue
            cells = [*cells[:last], row.tail(last)]
        yield place, dict(zip(names, cells, strict=False))


def read_jsonl(path: Path, columns: Columns, problems: Problems) -> list[ListedImage]:
    """Read a JSON object a line, or a list of objects; rows of the same image belong together.

    Raises:
        ConfigError: the columns are in none of the objects.
        DataError: the file cannot be read.

    """
    text = read_text(path, problems)
    if text.lstrip().startswith("["):
        rows = list(_array(text, problems))
    else:
        rows = list(_objects(text.split("\n"), problems))  # JSON may have other line ends inside
    if not rows:
        raise DataError(f"{path} has no JSON objects: one a line is expected, or a list of them")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    columns = columns.find(names, path)
    return _listed(iter(rows), columns, problems)


def _array(text: str, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read a JSON list of objects, which is what many call JSON lines."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):  # or lines, of which the first is not an object
        yield from _objects(text.split("\n"), problems)
        return
    for number, item in enumerate(items, 1):
        if isinstance(item, dict):
            yield f"item {number}", item
        else:
            problems.add("incomplete row", f"item {number} is not a JSON object")


def _objects(lines: Iterable[str], problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            yield f"line {number}", row
        else:
            problems.add("incomplete row", f"line {number} is not a JSON object")


def _listed(
    rows: Iterator[tuple[str, Mapping[str, Any]]], columns: Columns, problems: Problems
) -> list[ListedImage]:
    captions: dict[str, dict[str | None, list[str]]] = {}  # by image and split
    empty: list[tuple[str, str]] = []
    for place, row in rows:
        image = row.get(columns.image or "")
        if not isinstance(image, str) or not image.strip():
            problems.add("incomplete row", f"{place} names no image")
            continue
        image = image.strip()
        value = row.get(columns.split) if columns.split else None
        split = value.strip() or None if isinstance(value, str) else None
        found = [one for name in columns.captions for one in _captions(row.get(name))]
        captions.setdefault(image, {}).setdefault(split, []).extend(found)
        if not found:
            empty.append((place, image))
    for place, image in empty:
        if any(captions[image].values()):  # or the image is without a caption, and told as such
            problems.add("incomplete row", f"{place} has no caption")
    return [
        ListedImage(id=image, file_name=image, captions=tuple(texts), split=split)
        for image, by_split in captions.items()
        for split, texts in _merged(by_split).items()
    ]


def _merged(by_split: dict[str | None, list[str]]) -> dict[str | None, list[str]]:
    """Give rows without a split to the only split that others of the image have."""
    named = [split for split in by_split if split is not None]
    if None in by_split and len(named) == 1:
        return {named[0]: [text for texts in by_split.values() for text in texts]}
    return by_split


def _captions(value: object) -> list[str]:
    """Read one caption, or a list of them; a CSV cell may hold a JSON list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            decoded = value
        value = decoded
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [one if isinstance(one, str) else "" for one in value]
    return []
