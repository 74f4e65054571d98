"""Read files of captions: tables, Parquet, COCO's, Karpathy's and other JSON."""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError, DataError
from captioner.shared.tables import JSON_TABLES, WORKBOOKS, Row, Sheet, read_sheet, unique_names
from captioner_training.data.coco import parse_captions
from captioner_training.prepare.columns import IMAGE_NAMES, Columns, cell_captions
from captioner_training.prepare.listing import ListedImage, Problems, read_text
from captioner_training.prepare.locations import Location, open_parquet
from captioner_training.prepare.originals import Found, image_suffix

CAPTION_FILES = (".csv", ".tsv", ".token", *JSON_TABLES, *WORKBOOKS, ".parquet")
"""Suffixes of files that list photos and their captions."""

Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Rows of a table: the place of each row for messages ("line 3"), and its cells by column."""

_OTHER_FORMATS = (".yaml", ".yml", ".xml", ".html", ".toml")
_NUMBERED = re.compile(r"(.+)#\d+")  # 1000092795.jpg#0, as in Flickr8k.token.txt
_BATCH = 256  # rows of Parquet in memory at once
_TOP = 10  # rows that may be the header
_TABS = {"\\t": "\t", "tab": "\t"}  # values of --delimiter that stand for a tab


def read_caption_file(
    path: Path, columns: Columns, problems: Problems, *, prefix: str = ""
) -> list[ListedImage]:
    """Read a file of captions of any format.

    Args:
        path: the file to read.
        columns: the columns to read, if the file is a table.
        problems: receives rows that cannot be used.
        prefix: folder to put before the names of photos stored in Parquet; "": the file's stem.

    Raises:
        ConfigError: a given column is missing, or no column has photos or captions.
        DataError: the file cannot be read, or has no table.
        MissingExtraError: the extra that reads workbooks or Parquet is not installed.
    """
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return _read_parquet(path, columns, problems, prefix or path.stem)
    if suffix in _OTHER_FORMATS:
        raise DataError(f"{path} is not a table: convert it to CSV, JSON Lines or a workbook")
    if suffix not in WORKBOOKS:
        text = read_text(path, problems, name=str(path))
        if suffix in JSON_TABLES:
            return _read_json(text, path, columns, problems)
        if text.lstrip().startswith("{"):
            raise DataError(f"{path} contains JSON: rename it to {path.stem}.json")
    separator = columns.delimiter and _TABS.get(columns.delimiter, columns.delimiter)
    if separator is not None and len(separator) != 1:
        raise ConfigError(f"--delimiter is {separator!r}; it must be one character")
    sheet = read_sheet(path, name=str(path), separator=separator)
    columns, rows = _under_header(sheet, path, columns, problems)
    return _group(columns, rows, problems)


def _group(columns: Columns, rows: Rows, problems: Problems) -> list[ListedImage]:
    """Collect the rows of the same image and split."""
    captions = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
    embedded: dict[str, Location] = {}
    for place, row in rows:
        image = row.get(columns.image or "")
        if isinstance(image, Found):
            name, embedded[image.name] = image
        else:
            name = str(image).strip() if isinstance(image, str | int) else ""
        if not name:
            problems.add("incomplete row", f"{place} names no image", row=place)
            continue
        split = row.get(columns.split) if columns.split else None
        texts = [text for column in columns.captions for text in cell_captions(row.get(column))]
        key = name, split.strip() if isinstance(split, str) else ""
        captions[key] += [(text, place) for text in texts or [""]]
    return [
        ListedImage(
            id=name,
            file_name=name,
            captions=tuple(text for text, _ in texts),
            split=split or None,
            split_from=f"the column {columns.split}",
            rows=tuple(place for _, place in texts),
            location=embedded.get(name),
        )
        for (name, split), texts in captions.items()
    ]


def _under_header(
    sheet: Sheet, path: Path, columns: Columns, problems: Problems
) -> tuple[Columns, Rows]:
    """Return the columns and the rows below the header. Title lines above the header are skipped.

    Files whose lines begin with NAME#NUMBER, as in Flickr8k.token.txt, have no header.
    """
    rows = sheet.rows
    if not rows:
        raise DataError(f"{path} is empty")
    if not columns.named() and all(_NUMBERED.fullmatch(row.cells[0].strip()) for row in rows):
        header = ["image", "caption"]
        body = [Row(row.number, [row.cells[0].rpartition("#")[0], *row.cells[1:]]) for row in rows]
    else:
        top = next((at for at, row in enumerate(rows[:_TOP]) if columns.are_in(_cells(row))), 0)
        if top:
            problems.note(f"lines above the header, skipped: {top}")
        header, body = unique_names(rows[top].cells), rows[top + 1 :]
        if any(map(image_suffix, header)):
            raise DataError(f"{path} has no header: add a first line, such as image,caption")
    named = [
        (f"{sheet.unit} {row.number}", dict(zip(header, cells, strict=True)))
        for row in body
        for cells in [sheet.fit(row.cells, len(header))]
    ]
    columns = columns.find(list(filter(None, header)), [row for _, row in named], path)
    if sheet.separator and columns.captions != (header[-1],):
        named = list(_checked_width(body, named, len(header), sheet, problems))
    return columns, named


def _cells(row: Row) -> list[str]:
    return [cell.strip() for cell in row.cells]


def _checked_width(
    body: Sequence[Row],
    named: Sequence[tuple[str, dict[str, str]]],
    width: int,
    sheet: Sheet,
    problems: Problems,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows that have no extra cells, and report the others."""
    kind = "row with too many cells"
    problems.explain(
        kind,
        f"there are {width} columns; put text that contains {sheet.separator!r} into quotation "
        "marks",
    )
    for row, (place, cells) in zip(body, named, strict=True):
        if any(map(str.strip, row.cells[width:])):
            problems.add(kind, f"{place} has {len(row.cells)} cells", row=place)
        else:
            yield place, cells


def _read_json(text: str, path: Path, columns: Columns, problems: Problems) -> list[ListedImage]:
    try:
        content: Any = json.loads(text)
    except RecursionError as error:
        raise DataError(f"{path} is not valid JSON: it is nested too deep") from error
    except ValueError as error:
        content = _json_lines(text)
        if not any(isinstance(row, dict) for _, row in content):
            raise DataError(f"{path} is not valid JSON: {error}") from error
        return _read_objects(content, path, columns, problems)
    if isinstance(content, dict):
        if "annotations" in content and "images" in content:
            return coco_images(content, problems, name=str(path))
        if isinstance(images := content.get("images"), list):
            return _karpathy_images(images, path)
        if {*columns.named()} <= {*content} and (
            columns.named() or IMAGE_NAMES & {name.lower() for name in content}
        ):
            content = [content]
    if not isinstance(content, list):
        raise DataError(
            f"{path} is not in COCO's or Karpathy's format, and has no list of objects such as "
            '{"image": "1.jpg", "caption": "a dog"}'
        )
    rows = [(f"item {number}", row) for number, row in enumerate(content, 1)]
    return _read_objects(rows, path, columns, problems)


def _json_lines(text: str) -> list[tuple[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would also split strings
        if line.strip():
            try:
                rows.append((f"line {number}", json.loads(line)))
            except (ValueError, RecursionError):
                rows.append((f"line {number}", None))
    return rows


def _read_objects(
    values: Sequence[tuple[str, Any]], path: Path, columns: Columns, problems: Problems
) -> list[ListedImage]:
    """Read JSON objects as the rows of a table."""
    rows = [(place, row) for place, row in values if isinstance(row, dict)]
    if not rows:
        raise DataError(f"{path} has no JSON objects that name photos and captions")
    for place, row in values:
        if not isinstance(row, dict):
            problems.add("incomplete row", f"{place} is not a JSON object", row=place)
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return _group(columns.find(names, [row for _, row in rows], path), rows, problems)


def _karpathy_images(images: Sequence[Any], path: Path) -> list[ListedImage]:
    """Read Karpathy's format: {"images": [{"filename", "split", "sentences": [{"raw"}]}]}."""
    try:
        return [
            ListedImage(
                id=image.get("cocoid", name),
                file_name=name,
                captions=tuple(cell_captions(image["sentences"])),
                split=image.get("split"),
                split_from=path.name,
            )
            for image in images
            for name in ["/".join(filter(None, (image.get("filepath"), image["filename"])))]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} has images, but is not in COCO's or Karpathy's format: {error!r}"
        ) from error


def coco_images(
    content: Any, problems: Problems, *, name: str, split: str | None = None
) -> list[ListedImage]:
    """Read COCO's captions format; `split`, if given, replaces the splits in the image records."""
    return [
        ListedImage(
            id=image.id,
            file_name=image.file_name,
            captions=image.captions,
            split=split or image.split,
            split_from="the command line" if split else Path(name).name,
            licence=image.licence,
        )
        for image in parse_captions(content, name=name, report=problems.add)
    ]


def _read_parquet(
    path: Path, columns: Columns, problems: Problems, prefix: str
) -> list[ListedImage]:
    """Read a Parquet file.

    Tables from Hugging Face contain the photos themselves, as {bytes, path}. They are not kept in
    memory: a Location stores where each photo can be read again.
    """
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        first = next(file.iter_batches(batch_size=_BATCH), None)
        columns = columns.find(names, [] if first is None else first.to_pylist(), path)
        return _group(columns, _parquet_rows(file, path, columns, prefix), problems)


def _parquet_rows(file: Any, path: Path, columns: Columns, prefix: str) -> Rows:
    stamps: dict[str, int] = {}  # CRC of each photo, by its name
    image_column = columns.image or ""
    wanted = [name for name in file.schema_arrow.names if name in columns.named()]
    batches = file.iter_batches(batch_size=_BATCH, columns=wanted)
    for number, row in enumerate(row for batch in batches for row in batch.to_pylist()):
        cell = row[image_column]
        image = cell if isinstance(cell, Mapping) else {"bytes": cell}
        if isinstance(photo := image.get("bytes"), bytes):
            stamp = zlib.crc32(photo)
            path_inside = image.get("path") or f"{number}.jpg"
            name = f"{prefix}/{path_inside}"
            if stamps.setdefault(name, stamp) != stamp:  # such as "image.jpg" in every row
                name = f"{prefix}/{number}/{path_inside}"
            place = Location(str(path), number, len(photo), image_column, stamp, in_table=True)
            row[image_column] = Found(name, place)
        elif isinstance(cell, Mapping):
            row[image_column] = image.get("path")
        yield f"row {number + 1}", row
