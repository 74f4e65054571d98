"""Records of an earlier run, read back: each is what it should be, or is named."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from captioner.errors import DataError
from captioner_serving.batch.cells import FORMULAS, read_rows, text_of
from captioner_serving.batch.wording import CONTROL

__all__ = ["read_captions", "read_table"]

Record = dict[str, Any]


def read_captions(path: Path) -> Iterator[Record | None]:
    """Read a file of records; None stands for the record of a photo that failed.

    Raises:
        DataError: it cannot be read, or a line is not a record.

    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield _record(line, f"{path}, line {number}")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def read_table(path: Path) -> Iterator[Record]:
    """Read a .csv of captions, edited or not, as records of an image, a caption and its score.

    Spreadsheets save it with semicolons or tabs, decimal commas, and a mark at its beginning.

    Raises:
        DataError: it cannot be read, lacks a column, or has a row without an image, a caption of
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
            read = str if FORMULAS in names else text_of
            for row in rows:
                if any(row.values()):  # a spreadsheet may leave empty rows at the end
                    yield _of_row(row, read, f"{path}, line {rows.line_num}")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error


def _of_row(row: dict[str, str | None], read: Callable[[str], str], place: str) -> Record:
    image, caption = (read(row[column] or "") for column in ("image", "caption"))
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
