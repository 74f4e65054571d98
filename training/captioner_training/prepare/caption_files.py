"""Files of captions: tables (CSV, a JSON object a line, Parquet) and COCO's json."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from captioner.errors import ConfigError, DataError, MissingExtraError
from captioner.paths import did_you_mean, there_is_no
from captioner_training.prepare.listing import ListedImage, Problems, parse_json, read_text
from captioner_training.prepare.originals import image_suffix

__all__ = [
    "Columns",
    "TableReader",
    "coco_images",
    "csv_rows",
    "jsonl_rows",
    "parquet_rows",
    "read_table",
]

Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Where each row stands, for messages, and its cells by their columns."""

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
_DELIMITERS = (",", ";", "\t", "|")
_TYPED = {"\\t": "\t", "tab": "\t"}  # as a tab is typed in a shell
_LONGEST_CELL = 1_000_000  # characters; a quotation mark that is never closed shows earlier


class _Row(NamedTuple):
    """A row of a CSV file: its first line, from 1; its cells; the text that they were cut from."""

    line: int
    cells: list[str]
    text: str


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns to read; None: found by their usual names.

    delimiter: between the cells of a CSV file; None: found by its first row.
    """

    image: str | None = None
    captions: tuple[str, ...] = ()
    split: str | None = None
    delimiter: str | None = None

    def named(self) -> list[str]:
        """List the columns that the user has named."""
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
        split = self.split or _first(("split",), names, (image, *captions))
        return Columns(image=image, captions=captions, split=split)


TableReader = Callable[[Path, Columns, Problems], tuple[Columns, Rows]]
"""Gives the columns that were found, and the rows."""


def _first(usual: Sequence[str], names: Sequence[str], but: Sequence[str | None]) -> str | None:
    by_lower = {name.lower(): name for name in reversed(names) if name not in but}
    return next((by_lower[name] for name in usual if name in by_lower), None)


def read_table(
    path: Path, read: TableReader, columns: Columns, problems: Problems
) -> list[ListedImage]:
    """Read a table; rows of the same image and split belong together.

    Raises:
        ConfigError: the columns are not there, or the delimiter is not one character.
        DataError: the file cannot be read as such a table.
        MissingExtraError: Parquet without pyarrow.

    """
    columns, rows = read(path, columns, problems)
    captions = defaultdict[tuple[str, str | None], list[str]](list)
    for place, row in rows:
        image = row.get(columns.image or "")
        if not isinstance(image, str) or not image.strip():
            problems.add("incomplete row", f"{place} names no image")
            continue
        split = row.get(columns.split) if columns.split else None
        split = split.strip() if isinstance(split, str) else ""
        found = [one for name in columns.captions for one in _captions(row.get(name))]
        captions[image.strip(), split or None] += found or [""]
    return [
        ListedImage(id=image, file_name=image, captions=tuple(texts), split=split)
        for (image, split), texts in captions.items()
    ]


def _captions(value: object) -> list[str]:
    """Read one caption, or a list of them; a CSV cell may hold a JSON list."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parse_json(value, value)
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [one if isinstance(one, str) else "" for one in value]
    return []


def csv_rows(path: Path, columns: Columns, problems: Problems) -> tuple[Columns, Rows]:
    """Read CSV as people write it: any delimiter, with a header or without."""
    text = read_text(path, problems)
    delimiter = columns.delimiter
    if delimiter is None:
        names = {*_IMAGE, *_CAPTION, *map(str.lower, columns.named())}
        delimiter = _delimiter(text, names)
    delimiter = _TYPED.get(delimiter, delimiter)
    if len(delimiter) != 1:
        raise ConfigError(f"--delimiter {delimiter!r}: must be one character")
    rows = list(_split_rows(text, delimiter=delimiter))
    if not rows:
        raise DataError(f"{path} is empty")
    if any(image_suffix(cell.strip()) for cell in rows[0].cells):
        header = [str(number + 1) for number in range(min(len(row.cells) for row in rows))]
        if not (columns.image and columns.captions):
            raise ConfigError(
                f"{path} has no header, so its columns are called {', '.join(header)}: say which "
                "ones to read: --image-column 1 --caption-column 2"
            )
    else:
        header = [name.strip() for name in rows.pop(0).cells]
    columns = columns.find(header, path)
    return columns, _cells(rows, header, columns, problems, delimiter)


def _delimiter(text: str, names: Container[str]) -> str:
    """Choose the delimiter under which the first row has usual names, or that of an image."""
    first = next(filter(str.strip, text.splitlines()), "")

    def fits(delimiter: str) -> tuple[int, int]:
        cells = [cell.strip(' "') for cell in first.split(delimiter)]
        known = sum(cell.lower() in names or bool(image_suffix(cell)) for cell in cells)
        return known * (len(cells) > 1), len(cells)

    return max(_DELIMITERS, key=fits)  # of equals the first


def _cells(
    rows: Iterable[_Row],
    names: Sequence[str],
    columns: Columns,
    problems: Problems,
    delimiter: str,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Name the cells of each row; a caption in the last column may have unquoted delimiters."""
    last = len(names) - 1
    problems.explain(
        "row with too many cells",
        f"there are {len(names)} columns; a text with {delimiter!r} in it needs quotation marks "
        "around it",
    )
    for line, cells, text in rows:
        place = f"line {line}"
        if any(cell.strip() for cell in cells[len(names) :]):
            if columns.captions != (names[last],):
                problems.add("row with too many cells", f"{place} has {len(cells)}")
                continue
            cells = [*cells[:last], _tail(text, delimiter, last)]
        yield place, dict(zip(names, cells, strict=False))


def _tail(text: str, delimiter: str, first: int) -> str:
    """Join cell `first` and all that follow, with the spaces behind the delimiters."""
    cells = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    return delimiter.join(cells[first:]).strip()


def _split_rows(text: str, *, delimiter: str) -> Iterator[_Row]:
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
                yield _Row(begin + 1, cells, "".join(lines[begin:end]))
            begin = end
        if begin < len(lines):  # its quotation mark swallows other rows
            cells = [cell.strip() for cell in lines[begin].split(delimiter)]
            yield _Row(begin + 1, cells, lines[begin])
            begin += 1


def _well_quoted(
    lines: Sequence[str], begin: int, delimiter: str
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows from `begin` on, each with the line it ends before, up to one that is not."""
    reader = csv.reader(islice(lines, begin, None), delimiter=delimiter, skipinitialspace=True)
    start = begin
    try:
        for cells in reader:
            end = begin + reader.line_num
            swallowed = (
                one for line in lines[start + 1 : end] for one in line.split(delimiter)[:-1]
            )
            if any(image_suffix(cell.strip()) for cell in swallowed):
                return
            yield end, cells
            start = end
    except csv.Error:  # a cell without an end
        return


def jsonl_rows(path: Path, columns: Columns, problems: Problems) -> tuple[Columns, Rows]:
    """Read an object a line, or a list of objects, which is what many call JSON lines."""
    text = read_text(path, problems)
    if isinstance(items := parse_json(text), list):
        places = [(f"item {number}", item) for number, item in enumerate(items, 1)]
    else:
        lines = enumerate(text.split("\n"), 1)  # JSON may have other line ends inside
        places = [(f"line {n}", parse_json(line)) for n, line in lines if line.strip()]
    rows = [(place, row) for place, row in places if isinstance(row, dict)]
    if not rows:
        raise DataError(f"{path} has no JSON objects: one a line is expected, or a list of them")
    for place, row in places:
        if not isinstance(row, dict):
            problems.add("incomplete row", f"{place} is not a JSON object")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return columns.find(names, path), rows


def parquet_rows(path: Path, columns: Columns, _: Problems) -> tuple[Columns, Rows]:
    """Read the columns of a Parquet file that are asked for."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("reading Parquet", "parquet") from error
    if not path.is_file():
        raise DataError(there_is_no("file", path))
    try:
        columns = columns.find(parquet.read_schema(path).names, path)
        rows = parquet.read_table(path, columns=columns.named()).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error
    return columns, ((f"row {number}", row) for number, row in enumerate(rows, 1))


def coco_images(
    content: Any, problems: Problems, *, name: str, split: str | None = None
) -> list[ListedImage]:
    """Read COCO's captions format. `split` counts before one that an image record names.

    Raises:
        DataError: the content is not in that format.

    """
    if isinstance(content, list):
        raise DataError(
            f"{name} is not in COCO's captions format, an object with images and annotations, but "
            "a list: if each of its objects names an image and its captions, `captioner prepare "
            "jsonl` reads it"
        )
    try:
        return _coco_listed(content, problems, name, split)
    except KeyError as error:
        raise DataError(f"{name} is not in COCO's captions format: there is no {error}") from error
    except (TypeError, AttributeError) as error:
        raise DataError(f"{name} is not in COCO's captions format: {error}") from error


def _coco_listed(
    content: Any, problems: Problems, name: str, split: str | None
) -> list[ListedImage]:
    if not isinstance(content, dict):
        raise TypeError("it is no object with images and annotations")
    for part in ("images", "annotations"):
        entries = content[part]
        if not isinstance(entries, list) or any(not isinstance(one, dict) for one in entries):
            raise TypeError(f"its {part} are no list of objects")
    captions = defaultdict[int | str, list[str]](list)
    listed: dict[int | str, int] = {}
    for image in content["images"]:
        if not isinstance(image["id"], int | str):
            raise TypeError(f"an image's id is {image['id']!r}")
        listed[image["id"]] = 0
    for one in content["annotations"]:
        key, caption = one["image_id"], one["caption"]
        if key not in listed:
            problems.add("caption of an unknown image", f"image {key} in {name}")
        elif isinstance(caption, str):
            captions[key].append(caption)
        else:
            where = f"{caption!r:.40} for image {key} in {name}"
            problems.add("caption that is no text", where)
    licences = {one["id"]: one.get("name") for one in content.get("licenses") or []}
    return [
        ListedImage(
            id=image["id"],
            file_name=str(image["file_name"]),
            captions=tuple(captions[image["id"]]),
            split=split or image.get("split"),
            licence=licences.get(image.get("license")),
        )
        for image in content["images"]
    ]
