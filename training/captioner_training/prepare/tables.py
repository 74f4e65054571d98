"""Read tables of captions (CSV, workbooks, JSON, Parquet), and the JSON of COCO and Karpathy."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner.shared.paths import is_system_folder
from captioner.shared.tables import (
    JSON_TABLES,
    TABLES,
    WORKBOOKS,
    Row,
    read_json_rows,
    read_sheet,
    unique_names,
)
from captioner_training.data.reading import parse_captions
from captioner_training.prepare.columns import Columns, cell_captions
from captioner_training.prepare.files import (
    UNKNOWN,
    Found,
    Location,
    SourceImage,
    image_suffix,
    open_parquet,
    walk,
)
from captioner_training.prepare.problems import Problems, read_text
from captioner_training.prepare.splits import common_folder, split_of_file

CAPTION_TABLES = (*TABLES, ".token")
"""Suffixes of files that list photos and their captions."""

Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Rows of a table: the place of each row for messages ("line 3"), and its cells by column."""

_PARQUET = (".parquet", ".pq")
_NUMBERED = re.compile(r"(.+)#\d+")  # 1000092795.jpg#0, as in Flickr8k.token.txt
_BATCH = 256  # rows of Parquet in memory at once
_TOP = 10  # rows that may be the header


def list_tables(
    tables: Iterable[tuple[str, Path]], columns: Columns, problems: Problems
) -> tuple[list[SourceImage], list[Path]]:
    """Read tables, such as one per split; return their images, and the folders of the tables.

    Each table comes with the split that the command line gives it, or "".
    """
    files = [
        (split, path)
        for split, named in tables
        for path in (_parquet_files(named) if named.is_dir() else [named])
    ]
    paths = [path for _, path in files]
    images = read_tables(files, common_folder(paths), columns, problems)
    return images, [*dict.fromkeys(path.parent for path in paths)]


def _parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files in a folder downloaded from Hugging Face. Raises DataError."""
    paths = [path for path in walk(folder) if path.suffix.lower() in _PARQUET]
    if kept := [
        path for path in paths if not any(map(is_system_folder, path.relative_to(folder).parts))
    ]:
        return kept
    raise DataError(f"{folder} is a folder: name a file in it, or use `prepare folder`")


def read_tables(
    tables: Iterable[tuple[str, Path]], top: Path, columns: Columns, problems: Problems
) -> list[SourceImage]:
    """Read tables below the folder `top`, each with the split that the command line gives it."""
    images: list[SourceImage] = []
    for given, path in tables:
        of_file = split_of_file(path, top) or ""
        prefix = Path(os.path.relpath(path, top)).with_suffix("").as_posix()
        for image in read_caption_file(path, columns, problems, prefix=prefix):
            images.append(image._replace(split=given or image.split or of_file))
    return images


def read_caption_file(
    path: Path, columns: Columns, problems: Problems, *, prefix: str = ""
) -> list[SourceImage]:
    """Read a file of captions of any format. `prefix` is put before names of photos in Parquet.

    Raises:
        ConfigError: a given column is missing, or no column has photos or captions.
        DataError: the file cannot be read, or has no table.
        MissingExtraError: the extra that reads workbooks or Parquet is not installed.
    """
    suffix = path.suffix.lower()
    if suffix in _PARQUET:
        return _read_parquet(path, columns, problems, prefix)
    if suffix not in WORKBOOKS:
        text = read_text(path, problems, name=str(path))
        if suffix in JSON_TABLES:
            return _read_json(text, path, columns, problems)
        if text.lstrip().startswith("{"):
            raise DataError(f"{path} contains JSON: rename it to {path.stem}.json")
    return _read_sheet(path, columns, problems)


def _read_sheet(path: Path, columns: Columns, problems: Problems) -> list[SourceImage]:
    """Read a text table or workbook."""
    sheet = read_sheet(path, name=str(path))
    if not sheet.rows:
        raise DataError(f"{path} is empty")
    header, body = _header(sheet.rows, columns, path, problems)
    width = len(header)
    named = [dict(zip(header, sheet.fit(row.cells, width), strict=True)) for row in body]
    columns = columns.find([name for name in header if name], named, path)
    # Surplus cells belong to a caption in the last column; elsewhere they are an error.
    is_last = not sheet.separator or columns.captions == (header[-1],)
    rows = []
    for row, cells in zip(body, named, strict=True):
        place = f"{sheet.unit} {row.number}"
        if is_last or not any(map(str.strip, row.cells[width:])):
            rows.append((place, cells))
        else:
            cells_of = f"{place} has {len(row.cells)} cells for {width} columns"
            problems.add("row with too many cells", cells_of, row=place)
    return _group(columns, rows, problems)


def _header(
    rows: Sequence[Row], columns: Columns, path: Path, problems: Problems
) -> tuple[list[str], Sequence[Row]]:
    """Return the names of the columns, and the rows below them. Title lines above are skipped.

    Files whose lines begin with NAME#NUMBER, as in Flickr8k.token.txt, have no header.
    """
    if not columns.named() and all(_NUMBERED.fullmatch(row.cells[0].strip()) for row in rows):
        body = [Row(row.number, [row.cells[0].rpartition("#")[0], *row.cells[1:]]) for row in rows]
        return ["image", "caption"], body
    heads = (at for at, row in enumerate(rows[:_TOP]) if columns.are_in(unique_names(row.cells)))
    if top := next(heads, 0):
        problems.note(f"lines above the header, skipped: {top}")
    header = unique_names(rows[top].cells)
    if any(map(image_suffix, header)):
        raise DataError(f"{path} has no header: add a first line, such as image,caption")
    return header, rows[top + 1 :]


def _group(columns: Columns, rows: Rows, problems: Problems) -> list[SourceImage]:
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
        SourceImage(
            id=name,
            file_name=name,
            captions=tuple(text for text, _ in texts),
            split=split,
            rows=tuple(place for _, place in texts),
            location=embedded.get(name, UNKNOWN),
        )
        for (name, split), texts in captions.items()
    ]


def _read_json(text: str, path: Path, columns: Columns, problems: Problems) -> list[SourceImage]:
    """Read COCO's or Karpathy's format, a list of objects, or JSON Lines."""

    def report(number: int) -> None:
        place = f"line {number}"
        problems.add("incomplete row", f"{place} is not JSON", row=place)

    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        lines = read_json_rows(text.encode(), name=str(path), report=report)
        return _read_objects(lines, "line", path, columns, problems)
    if isinstance(content, dict):
        if "annotations" in content and "images" in content:
            return coco_images(content, problems, name=str(path))
        if isinstance(images := content.get("images"), list):
            return _karpathy_images(images, path)
        if path.suffix.lower() != ".json" or columns.are_in([*content]):  # a list of one object
            content = [content]
    if not isinstance(content, list):
        raise DataError(
            f"{path} is not in COCO's or Karpathy's format, and has no list of objects such as "
            '{"image": "1.jpg", "caption": "a dog"}'
        )
    return _read_objects([*enumerate(content, 1)], "item", path, columns, problems)


def _read_objects(
    values: Sequence[tuple[int, Any]], unit: str, path: Path, columns: Columns, problems: Problems
) -> list[SourceImage]:
    """Read JSON objects as the rows of a table."""
    rows = [(f"{unit} {number}", row) for number, row in values if isinstance(row, dict)]
    if not rows:
        raise DataError(f"{path} has no JSON objects that name photos and captions")
    for number, row in values:
        if not isinstance(row, dict):
            place = f"{unit} {number}"
            problems.add("incomplete row", f"{place} is not a JSON object", row=place)
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return _group(columns.find(names, [row for _, row in rows], path), rows, problems)


def _karpathy_images(images: Sequence[Any], path: Path) -> list[SourceImage]:
    """Read Karpathy's format: {"images": [{"filename", "split", "sentences": [{"raw"}]}]}."""
    try:
        listed = [
            SourceImage(
                id=image.get("cocoid", name),
                file_name=name,
                captions=tuple(cell_captions(image["sentences"])),
                split=image.get("split") or "",
            )
            for image in images
            for name in ["/".join(filter(None, (image.get("filepath"), image["filename"])))]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} has images, but is not in COCO's or Karpathy's format: {error!r}"
        ) from error
    return _with_known_types(listed, str(path))


def coco_images(
    content: Any, problems: Problems, *, name: str, split: str = ""
) -> list[SourceImage]:
    """Read COCO's captions format; `split`, if given, replaces the splits in the image records."""
    listed = [
        SourceImage(**image._replace(split=split or image.split)._asdict())
        for image in parse_captions(content, name=name, report=problems.add)
    ]
    return _with_known_types(listed, name)


def _with_known_types(images: list[SourceImage], name: str) -> list[SourceImage]:
    """Return the images of a JSON file. Raises DataError: an id or a split has another type."""
    for image in images:
        if not (isinstance(image.id, int | str) and isinstance(image.split, str)):
            raise DataError(
                f"{name}: {image.file_name} has the id {image.id!r} and the split {image.split!r}; "
                "the id must be a number or text, and the split text"
            )
    return images


def _read_parquet(
    path: Path, columns: Columns, problems: Problems, prefix: str
) -> list[SourceImage]:
    """Read a Parquet file. Photos inside, {bytes, path}, are located, not kept in memory."""
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
