"""The order of a review: the captions that need most corrections first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from captioner.errors import OutputError
from captioner.files import replace_file
from captioner.trust.familiarity import UNFAMILIAR

__all__ = ["sort_review"]

# 25 MB for a million captions; tuples would take ten times as much.
_PLACE = np.dtype([("trusted", bool), ("right", float), ("score", float), ("size", np.int64)])


def sort_review(path: Path, *, part: str) -> None:
    """Sort the lines of a review; a sorted copy takes its place.

    Captions without trust and those of unfamiliar photos come first, then those with the most
    words that trust expects to be wrong, then those with the lowest scores.

    Args:
        path: the review.
        part: the name of the copy while it is written.

    Raises OutputError: it cannot be written, or a line is not a record.
    """
    lines = np.fromiter(_places(path), dtype=_PLACE)
    order = np.lexsort((lines["score"], lines["right"], lines["trusted"]))
    if (np.diff(order) >= 0).all():
        return
    starts = np.cumsum(lines["size"]) - lines["size"]
    with path.open("rb") as old, replace_file(path, part=part) as file:
        for index in order:
            old.seek(starts[index])
            file.write(old.read(lines["size"][index]))


def _places(path: Path) -> Iterator[tuple[bool, float, float, int]]:
    with path.open("rb", buffering=1 << 20) as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                right = sum(word.get("trust", 1.0) - 1.0 for word in record.get("words", ()))
                trusted = "trust" in record and record.get("familiarity", 1.0) >= UNFAMILIAR
                yield trusted, right, record["score"], len(line)
            except (ValueError, KeyError, TypeError) as error:
                raise OutputError(
                    f"{path}, line {number} is not a record: mend or remove the line"
                ) from error
