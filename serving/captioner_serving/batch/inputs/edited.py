"""Read captions from a .csv of `captioner batch`, which may have been edited."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner_serving.batch.outputs.cells import read_rows, text_of
from captioner_serving.batch.outputs.records import is_name, is_sentence

Record = dict[str, Any]


def read_record_table(path: Path) -> Iterator[Record]:
    """Yield a record for each row, with image, caption and score.

    If any row has keywords, all records have `keywords`. The formats that spreadsheets save are
    accepted: other separators, decimal commas, UTF-16 and Windows-1252.

    Raises DataError: the file cannot be read, lacks a column, or has a row without image, caption
        or score.
    """
    try:
        table = read_rows(path)
        if missing := {"image", "caption", "score"} - set(table.fieldnames or ()):
            raise DataError(
                f"{path} has no column {', '.join(sorted(missing))}: use a .csv that captioner "
                "batch wrote, with its header"
            )
        # A spreadsheet may leave empty rows at the end.
        rows = [(table.line_num, row) for row in table if any(row.values())]
        has_keywords = any(row.get("keywords") for _, row in rows)
        for number, row in rows:
            record = _record(row, f"{path}, line {number}")
            if has_keywords:
                keywords = map(str.strip, _text(row, "keywords").split(","))
                record["keywords"] = list(filter(None, keywords))
            yield record
    except csv.Error as error:
        raise DataError(f"{path} cannot be read as a table: {error}") from error


def _record(row: dict[str, str | None], place: str) -> Record:
    image, caption = text_of(row["image"] or ""), _text(row, "caption")
    if not image or not is_name(image):
        raise DataError(f"{place} has no image")
    try:
        score = float((row["score"] or "").replace(",", "."))
    except ValueError:
        score = math.nan
    record = {"image": image, "caption": caption, "score": score, "alternatives": []}
    if not is_sentence(record):
        raise DataError(f"{place} needs a caption, and a number as score: correct the line")
    return record


def _text(row: dict[str, str | None], column: str) -> str:
    text = text_of(row.get(column) or "")
    if any("\udc80" <= sign <= "\udcff" for sign in text):
        return text.encode("utf-8", "surrogateescape").decode("cp1252", "replace")
    return text
