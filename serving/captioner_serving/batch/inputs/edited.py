"""Captions from a .csv that batch wrote and that may have been edited since."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner_serving.batch.outputs.cells import read_rows, text_of
from captioner_serving.batch.outputs.records import is_name, is_sentence

__all__ = ["read_record_table"]

Record = dict[str, Any]


def read_record_table(path: Path) -> Iterator[Record]:
    """Read each row as a record of an image, a caption and its score.

    If any row has keywords, all records have them.

    Spreadsheets save it with other separators, decimal commas, and as UTF-16 or Windows-1252.

    Raises DataError: it cannot be read, lacks a column, or has a row without an image, a caption or
        a score.
    """
    try:
        table = read_rows(path)
        if missing := {"image", "caption", "score"} - set(table.fieldnames or ()):
            raise DataError(
                f"{path} has no column {', '.join(sorted(missing))}: name a .csv that "
                "captioner batch wrote, with its first line"
            )
        # A spreadsheet may leave empty rows at the end.
        rows = [(table.line_num, row) for row in table if any(row.values())]
        has_keywords = any(row.get("keywords") for _, row in rows)
        for number, row in rows:
            record = _of_row(row, f"{path}, line {number}")
            if has_keywords:
                keywords = map(str.strip, _text(row, "keywords").split(","))
                record["keywords"] = list(filter(None, keywords))
            yield record
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error


def _of_row(row: dict[str, str | None], place: str) -> Record:
    image, caption = text_of(row["image"] or ""), _text(row, "caption")
    if not image or not is_name(image):
        raise DataError(f"{place} has no image")
    try:
        score = float((row["score"] or "").replace(",", "."))
    except ValueError:
        score = math.nan
    record = {"image": image, "caption": caption, "score": score, "alternatives": []}
    if not is_sentence(record):
        raise DataError(f"{place} has no caption of text with a score that is a number: mend it")
    return record


def _text(row: dict[str, str | None], column: str) -> str:
    text = text_of(row.get(column) or "")
    if any("\udc80" <= sign <= "\udcff" for sign in text):
        return text.encode("utf-8", "surrogateescape").decode("cp1252", "replace")
    return text
