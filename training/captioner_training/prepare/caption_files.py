"""Files of captions: tables (CSV, workbooks, a JSON object a line, Parquet) and COCO's json."""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

from captioner.errors import ConfigError, DataError, MissingExtraError
from captioner.paths import there_is_no
from captioner_training.prepare.columns import USUAL_NAMES, Columns, cell_captions
from captioner_training.prepare.listing import (
    ListedImage,
    Problems,
    parse_json,
    read_text,
)
from captioner_training.prepare.originals import Found, Location, image_suffix, open_parquet

__all__ = [
    "TableReader",
    "coco_images",
    "csv_rows",
    "jsonl_rows",
    "parquet_rows",
    "read_table",
    "xlsx_rows",
]

Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Where each row stands, for messages, and its cells by their columns."""

_DELIMITERS = (",", ";", "\t", "|")
_SEPARATOR = re.compile(r"\ufeff?sep=(.)", re.IGNORECASE)
_WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
_BATCH = 256  # rows of Parquet that are in memory at once
_TOP = 10  # rows, among which the header is
_TYPED = {"\\t": "\t", "tab": "\t"}  # as a tab is typed in a shell


class _Row(NamedTuple):
    """A row of a CSV file: its first line, from 1; its cells; the text that they were cut from."""

    line: int
    cells: list[str]
    text: str


TableReader = Callable[[Path, Columns, Problems], tuple[Columns, Rows]]
"""Gives the columns that were found, and the rows."""


def read_table(
    path: Path, read: TableReader, columns: Columns, problems: Problems
) -> list[ListedImage]:
    """Read a table; rows of the same image and split belong together.

    Raises:
        ConfigError: the columns are not there, or the delimiter is not one character.
        DataError: the file cannot be read as such a table.
        MissingExtraError: Parquet without pyarrow, a workbook without openpyxl.
    """
    columns, rows = read(path, columns, problems)
    found = defaultdict[tuple[str, str | None], list[tuple[str, str]]](list)
    inside: dict[str, Location] = {}
    for place, row in rows:
        image = row.get(columns.image or "")
        if isinstance(image, Found):
            name, inside[image.name] = image
        else:
            name = str(image).strip() if isinstance(image, str | int) else ""
        if not name:
            problems.add("incomplete row", f"{place} names no image", row=place)
            continue
        split = row.get(columns.split) if columns.split else None
        split = split.strip() if isinstance(split, str) else ""
        texts = [one for column in columns.captions for one in cell_captions(row.get(column))]
        found[name, split or None] += [(text, place) for text in texts or [""]]
    return [
        ListedImage(
            id=image,
            file_name=image,
            captions=tuple(text for text, _ in each),
            split=split,
            rows=tuple(place for _, place in each),
            location=inside.get(image),
        )
        for (image, split), each in found.items()
    ]


def csv_rows(path: Path, columns: Columns, problems: Problems) -> tuple[Columns, Rows]:
    """Read CSV as people write it: any delimiter, with a header or without."""
    if path.suffix.lower() in _WORKBOOKS:
        return xlsx_rows(path, columns, problems)
    text = read_text(path, problems)
    lines = text.splitlines(keepends=True)
    said = (
        _SEPARATOR.fullmatch(lines[0].rstrip("\r\n")) if lines else None
    )  # as Excel writes and reads
    if said:
        del lines[0]  # spreadsheets show no such row, and count without it
    delimiter = columns.delimiter or (said[1] if said else _delimiter(lines, columns.named()))
    delimiter = _TYPED.get(delimiter, delimiter)
    if len(delimiter) != 1:
        raise ConfigError(f"--delimiter {delimiter!r}: must be one character")
    rows = list(_split_rows("".join(lines), path, problems, delimiter=delimiter))
    unit = "row" if said else "line"
    return _under_header(rows, path, columns, problems, unit=unit, delimiter=delimiter)


def xlsx_rows(path: Path, columns: Columns, problems: Problems) -> tuple[Columns, Rows]:
    """Read the first sheet of a workbook."""
    if path.suffix.lower() in (".xls", ".ods"):
        raise DataError(f"{path} is no .xlsx: open it, and export it as CSV or .xlsx")
    try:
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError as error:
        raise MissingExtraError(
            f"reading {path} (or export it as CSV, which needs nothing: `captioner prepare csv`)",
            "xlsx",
        ) from error
    if not path.is_file():
        raise DataError(there_is_no("file", path))
    try:
        with closing(load_workbook(path, read_only=True, data_only=True)) as book:
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # other programs write A1 there, or a million rows
            values = list(sheet.iter_rows(values_only=True))
    except (
        InvalidFileException, BadZipFile, zlib.error, SyntaxError, EOFError, LookupError, TypeError,
        ValueError, OSError,
    ) as error:  # fmt: skip
        # XML that is damaged is a SyntaxError, of whichever parser openpyxl has found.
        raise DataError(
            f"{path} cannot be read as a workbook: {error}; export it as CSV"
        ) from error
    cells = [
        ["" if cell is None else str(cell) for cell in row]
        for row in zip(*zip_longest(*values), strict=True)  # rows end with their last cell
    ]
    rows = [_Row(line, row, "") for line, row in enumerate(cells, 1) if any(map(str.strip, row))]
    return _under_header(rows, path, columns, problems, unit="row")


def _under_header(
    rows: list[_Row],
    path: Path,
    columns: Columns,
    problems: Problems,
    *,
    unit: str,
    delimiter: str = "",
) -> tuple[Columns, Rows]:
    """Find the header, which may have titles above it, or be missing, and the columns.

    `unit` is what rows are called in messages; a workbook has no delimiter.
    """
    if not rows:
        raise DataError(f"{path} is empty")
    top = _header_at(rows, columns.named())
    if top:
        problems.note(f"lines above the header, passed over: {top}")
    cells = rows[top].cells
    if any(image_suffix(cell.strip()) for cell in cells):
        header = [str(number + 1) for number in range(min(len(row.cells) for row in rows[top:]))]
        rows = rows[top:]
    else:
        header = [cell.strip() for cell in cells]
        while header and not header[-1]:
            header.pop()
        # A name that comes again would hide the column that had it first.
        header = [
            f"{name} {header[:at].count(name) + 1}" if name and name in header[:at] else name
            for at, name in enumerate(header)
        ]
        rows = rows[top + 1 :]
    named = [dict(zip(header, row.cells, strict=False)) for row in rows]
    columns = columns.find([name for name in dict.fromkeys(header) if name], named, path, problems)
    return columns, _cells(rows, header, columns, problems, unit=unit, delimiter=delimiter)


def _header_at(rows: Sequence[_Row], named: Sequence[str]) -> int:
    """Find the row that has the named columns, or else the widest above the first photo.

    Where no cell is the name of a photo, it is the first of the widest: titles are narrower.
    """
    filled = [sum(bool(cell.strip()) for cell in row.cells) for row in rows[:_TOP]]
    for at, row in enumerate(rows[:_TOP]):
        if named and {*named} <= {cell.strip() for cell in row.cells}:
            return at
        if any(image_suffix(cell.strip()) for cell in row.cells):
            return max(range(at), key=lambda above: (filled[above], above), default=0)
    return filled.index(max(filled))


def _delimiter(lines: Sequence[str], named: Sequence[str]) -> str:
    """Choose the delimiter under which rows have photos, or usual names, or are of one width.

    csv.Sniffer looks at quotation marks and frequent signs alone: in sentences that is the comma.
    """
    usual = USUAL_NAMES | {name.lower() for name in named}
    some = [line for line in lines[: 5 * _TOP] if line.strip()]

    def fits(delimiter: str) -> tuple[float, ...]:
        split = [[cell.strip(' "') for cell in line.split(delimiter)] for line in some]
        wide = [cells for cells in split if len(cells) > 1]
        photos = sum(any(image_suffix(cell.strip()) for cell in cells) for cells in wide)
        known = sum(cell.lower() in usual for cells in wide[:_TOP] for cell in cells)
        widths = Counter(map(len, wide)).most_common(1)
        return photos, known, widths[0][1] if widths else 0

    return max(_DELIMITERS, key=fits)  # of equals the first


def _cells(
    rows: Iterable[_Row],
    names: Sequence[str],
    columns: Columns,
    problems: Problems,
    *,
    unit: str,
    delimiter: str,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Name the cells of each row; a caption in the last column may have unquoted delimiters."""
    last = len(names) - 1
    if delimiter:
        problems.explain(
            "row with too many cells",
            f"there are {len(names)} columns; a text with {delimiter!r} in it needs quotation "
            "marks around it",
        )
    for line, cells, text in rows:
        place = f"{unit} {line}"
        if any(cell.strip() for cell in cells[len(names) :]):
            if columns.captions != (names[last],) or not text:
                problems.add("row with too many cells", f"{place} has {len(cells)}", row=place)
                continue
            cells = [*cells[:last], _tail(text, delimiter, last)]
        yield place, dict(zip(names, cells, strict=False))


def _tail(text: str, delimiter: str, first: int) -> str:
    """Join cell `first` and all that follow, with the spaces behind the delimiters."""
    cells = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    return delimiter.join(cells[first:]).strip()


def _split_rows(text: str, path: Path, problems: Problems, *, delimiter: str) -> Iterator[_Row]:
    """Yield the rows that are not blank.

    A quotation mark that is opened and never closed takes the rows behind it along: it is named.
    """
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    begin = 0
    try:
        for cells in reader:
            own = lines[begin : reader.line_num]
            behind = (cell for line in own[1:] for cell in line.split(delimiter)[:-1])
            if any(image_suffix(cell.strip()) for cell in behind):
                place = f"line {begin + 1}"
                problems.add("quotation mark that is never closed", f"{place} on", row=place)
            elif any(map(str.strip, cells)):
                yield _Row(begin + 1, cells, "".join(own))
            begin = reader.line_num
    except csv.Error as error:
        raise DataError(
            f"{path} cannot be read as a table from line {begin + 1} on: {error}"
        ) from error


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
            problems.add("incomplete row", f"{place} is not a JSON object", row=place)
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return columns.find(names, [row for _, row in rows], path, problems), rows


def parquet_rows(path: Path, columns: Columns, problems: Problems) -> tuple[Columns, Rows]:
    """Read the columns that are asked for.

    Hugging Face's tables have photos inside, a column of {bytes, path}: such a cell is a Found. The
    bytes are not kept, a Location says where they are read again.
    """
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        first = next(file.iter_batches(batch_size=_BATCH), None)
        found = columns.find(names, [] if first is None else first.to_pylist(), path, problems)
        return found, list(_parquet_rows(file, path, found))


def _parquet_rows(file: Any, path: Path, columns: Columns) -> Iterator[tuple[str, dict[str, Any]]]:
    stamps = dict[str, int]()  # of the photos, by their names
    wanted = [name for name in file.schema_arrow.names if name in columns.named()]
    batches = file.iter_batches(batch_size=_BATCH, columns=wanted)
    for number, row in enumerate(row for batch in batches for row in batch.to_pylist()):
        image = row[columns.image]
        if isinstance(image, Mapping):
            photo, name = image.get("bytes"), image.get("path")
            row[columns.image] = name
            if isinstance(photo, bytes):
                stamp = zlib.crc32(photo)
                name = f"{path.stem}/{name or f'{number}.jpg'}"
                if stamps.setdefault(name, stamp) != stamp:  # "image.jpg" in every row
                    name = f"{path.stem}/{number}/{image['path']}"
                place = Location(str(path), number, len(photo), columns.image, stamp, in_table=True)
                row[columns.image] = Found(name, place)
        yield f"row {number + 1}", row


def coco_images(
    content: Any, problems: Problems, *, name: str, split: str | None = None
) -> list[ListedImage]:
    """Read COCO's captions format. `split` counts before one that an image record names.

    Raises DataError: the content is not in that format.
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
    captions: dict[int | str, list[str]] = {}
    for image in content["images"]:
        if not isinstance(image["id"], int | str):
            raise TypeError(f"an image's id is {image['id']!r}")
        captions[image["id"]] = []
    for one in content["annotations"]:
        key, caption = one["image_id"], one["caption"]
        if key not in captions:
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
