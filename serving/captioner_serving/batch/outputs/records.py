r"""Records as files: .jsonl, .csv, .parquet and COCO's results, written, and read back.

Texts in cells of CSV are run by no spreadsheet, steer no terminal, and come back as they were. A
program that separates by semicolons sees other cells than one that separates by commas: a formula
may begin behind any separator.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from captioner.errors import ConfigError, DataError, MissingExtraError, OutputError
from captioner.terminal import json_line, printable
from captioner_serving.batch.wording import CONTROL

__all__ = [
    "cell_of",
    "check_output",
    "read_captions",
    "read_record_table",
    "read_rows",
    "text_of",
    "write_records",
]

Record = dict[str, Any]

_COLUMNS = ("image", "caption", "score", "alternatives", "model")
"""A table that has these was written here; those of _LATER were added later."""
_LATER = ("familiarity", "trust")

# What a spreadsheet takes a cell for a formula by; the wide ones are those of Japanese keyboards.
_SIGN = "[=+@\uff1d\uff0b\uff0d\uff20-]"
# What may stand before it and is not seen: soft hyphens, joiners, marks, selectors.
_UNSEEN = "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f"
_UNSEEN += "\u3164\ufe00-\ufe0f\ufeff\uffa0"
_BEGIN = rf'((?:^|[,;|\n])[\s"{_UNSEEN}]*)'  # of a cell; tabs are written out
_FORMULA = re.compile(rf"{_BEGIN}(?='*{_SIGN})")
_DEFUSED = re.compile(rf"{_BEGIN}'(?='*{_SIGN})")
_WRITTEN_OUT = re.compile(r"\\(x[0-9a-f]{2}|u20[0-9a-f]{2}|t|r)")  # a sign, by `printable`

_ROWS = 10_000  # of Parquet written together


def check_output(output: str) -> None:
    """Refuse before the work what cannot be written after it.

    Raises:
        ConfigError: no such format.
        MissingExtraError: Parquet, without its extra.
        OutputError: there is no such folder.
    """
    path = Path(output)
    if path.suffix not in _WRITERS:
        formats = ", ".join(_WRITERS)
        raise ConfigError(f"output {output!r} is none of {formats}, nor - for standard output")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise MissingExtraError(f"writing {output}", "parquet")
    if path.is_dir() or not path.absolute().parent.is_dir():
        kind = "is a folder" if path.is_dir() else f"has no folder {path.absolute().parent}"
        raise OutputError(f"{output} cannot be written: it {kind}")


def write_records(file: BinaryIO, suffix: str, records: Iterator[Record]) -> None:
    """Write records of captioned photos in the format of a suffix that check_output has seen.

    Args:
        file: has a name; the bytes are in the file of that name afterwards.
        suffix: .jsonl, .csv, .parquet or .json.
        records: of captioned photos.

    Raises:
        OutputError: two photos have one COCO id.
        OSError: the disk is full, or the like.
    """
    _WRITERS[suffix](Path(file.name), records)


def _row(record: Record) -> Record:
    return {
        "image": record["image"],
        "caption": record["caption"],
        "score": record["score"],
        "alternatives": [other["caption"] for other in record["alternatives"]],
        "model": f"{record['model']['name']} {record['model']['version']}",
        **{name: record.get(name) for name in _LATER},
    }


def _write_lines(path: Path, records: Iterator[Record]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json_line(record) + "\n" for record in records)


def _write_csv(path: Path, records: Iterator[Record]) -> None:
    """A row a photo; alternatives in a cell, one a line. Odd bytes of a name stay as they are."""
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.DictWriter(file, [*_COLUMNS, *_LATER])
        writer.writeheader()
        for record in records:
            row = _row(record)
            row["alternatives"] = "\n".join(row["alternatives"])
            writer.writerow({k: cell_of(v) if isinstance(v, str) else v for k, v in row.items()})


def _write_parquet(path: Path, records: Iterator[Record]) -> None:
    """Arrow's text is UTF-8: bytes of a name that are not stand as a backslash, x, two digits."""
    import pyarrow
    from pyarrow import parquet

    text, number = pyarrow.string(), pyarrow.float32()
    kinds = (text, text, number, pyarrow.list_(text), text, number, number)
    schema = pyarrow.schema(list(zip((*_COLUMNS, *_LATER), kinds, strict=True)))
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        rows = map(_row, records)
        while part := list(islice(rows, _ROWS)):
            for row in part:
                name = row["image"].encode("utf-8", "surrogateescape")
                row["image"] = name.decode("utf-8", "backslashreplace")
            writer.write_table(pyarrow.Table.from_pylist(part, schema=schema))


def _write_coco(path: Path, records: Iterator[Record]) -> None:
    """COCO's results format; the id is the number that a COCO file name ends with, or its stem."""
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        known: dict[int | str, str] = {}
        for number, record in enumerate(records):
            name, stem = record["image"], Path(record["image"]).stem
            found = re.search(r"(?:^|_)([0-9]{1,18})$", stem)  # COCO_val2014_000000391895
            identity = int(found[1]) if found else stem
            if (other := known.setdefault(identity, name)) != name:
                raise OutputError(
                    f"{other} and {name} would both have the COCO id {identity!r}: rename one, or "
                    "write .jsonl, .csv or .parquet"
                )
            result = {"image_id": identity, "caption": record["caption"]}
            file.write((",\n" if number else "\n") + json_line(result))
        file.write("\n]\n")


_WRITERS: dict[str, Callable[[Path, Iterator[Record]], None]] = {
    ".jsonl": _write_lines,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".json": _write_coco,
}


def cell_of(text: str) -> str:
    r"""Write a text for a cell.

    >>> print(cell_of("x;=1+1;.jpg"), cell_of("a\x1b.jpg"), cell_of(r"a\x1b.jpg"))
    x;'=1+1;.jpg a\x1b.jpg a\x5cx1b.jpg
    """
    text = printable(_WRITTEN_OUT.sub(r"\\x5c\1", text))
    return _FORMULA.sub(r"\1'", text)


def text_of(cell: str) -> str:
    r"""Read a cell that `cell_of` wrote.

    >>> text_of("x;'=1+1;.jpg"), text_of(r"a\x5cx1b.jpg")
    ('x;=1+1;.jpg', 'a\\x1b.jpg')
    """

    def sign(found: re.Match[str]) -> str:
        return {"t": "\t", "r": "\r"}.get(found[1]) or chr(int(found[1][1:], 16))

    return _WRITTEN_OUT.sub(sign, _DEFUSED.sub(r"\1", cell))


def read_rows(lines: Iterable[str], *, delimiter: str) -> tuple[csv.DictReader[str], bool]:
    """Read a table with cells of any size; whether its texts went through `cell_of`."""
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(lines, delimiter=delimiter)
    names = set(rows.fieldnames or ())
    return rows, names.issuperset(_COLUMNS)


def read_captions(path: Path) -> Iterator[Record | None]:
    """Read a file of records; None stands for the record of a photo that failed.

    Raises DataError: it cannot be read, or a line is not a record.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _record(line, f"{path}, line {number}")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def read_record_table(path: Path) -> Iterator[Record]:
    """Read a .csv of captions, edited or not, as records of an image, a caption and its score.

    Spreadsheets save it with semicolons or tabs, decimal commas, and a mark at its beginning.

    Raises DataError: it cannot be read, lacks a column, or has a row without an image, a caption of
    text or a score.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            first = file.readline()
            file.seek(0)
            rows, _ = read_rows(file, delimiter=max(",;\t", key=first.count))
            names = set(rows.fieldnames or ())
            if missing := {"image", "caption", "score"} - names:
                raise DataError(
                    f"{path} has no column {', '.join(sorted(missing))}: name a .csv that "
                    "captioner batch wrote, with its first line"
                )
            for row in rows:
                if any(row.values()):  # a spreadsheet may leave empty rows at the end
                    yield _of_row(row, f"{path}, line {rows.line_num}")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error


def _of_row(row: dict[str, str | None], place: str) -> Record:
    image, caption = (text_of(row[column] or "") for column in ("image", "caption"))
    if not image or not _is_name(image):
        raise DataError(f"{place} has no image")
    try:
        score = float((row["score"] or "").replace(",", "."))
    except ValueError:
        score = math.nan
    record = {"image": image, "caption": caption, "score": score, "alternatives": []}
    if not _is_sentence(record):
        raise DataError(
            f"{place} has no caption in UTF-8 with a score that is a number: save the table as CSV "
            "UTF-8, or mend the row"
        )
    return record


def _record(line: bytes, place: str) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place} is an incomplete record: continue the run that writes it, or remove the line"
        ) from error
    if not isinstance(record, dict) or not _is_name(record.get("image")):
        raise DataError(f"{place} is not a caption record: it has no image")
    if "error" in record and "caption" not in record:
        return None
    alternatives, model = record.get("alternatives"), record.get("model")
    if not (isinstance(alternatives, list) and all(map(_is_sentence, (record, *alternatives)))):
        raise DataError(f"{place} is not a caption record: caption, score or alternatives")
    if not (isinstance(model, dict) and all(_is_text(model.get(k)) for k in ("name", "version"))):
        raise DataError(f"{place} is not a caption record: it names no model")
    return record


def _is_sentence(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    score = value.get("score")
    number = isinstance(score, int | float) and not isinstance(score, bool) and abs(score) < 1e9
    texts = (value.get("caption"), value.get("unworded", ""))
    return number and all(_is_text(text) and not CONTROL.search(text) for text in texts)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def _is_name(value: object) -> bool:
    """Whether this may be a file name: bytes that are no text stand as surrogates in it."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
