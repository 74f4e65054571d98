"""Captions of a split that another program made: COCO results or caption records."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from captioner.errors import DataError
from captioner.shared.tables import read_json_rows, read_table
from captioner.shared.text import counted
from captioner_training.data.images import CaptionedImage
from captioner_training.data.reading import read_captions

_TAIL_NUMBER = re.compile(r"(?:^|_)([0-9]{1,18})$")  # COCO_val2014_000000391895


@dataclass(frozen=True, kw_only=True)
class Target:
    """An image whose caption is scored: its id, file name and references as written."""

    id: int | str
    name: str
    references: tuple[str, ...]


@dataclass(kw_only=True)
class Predictions:
    """Captions read from a file.

    captions: one per image, in the order of the split; None for an image without a caption.
    problems: sentences about entries of the file.
    """

    captions: list[str | None]
    problems: list[str] = field(default_factory=list)
    path: Path = Path()


def targets(images: Sequence[CaptionedImage]) -> list[Target]:
    """Return the ids, names and references of a split, which are all that scoring needs."""
    return [Target(id=image.id, name=image.name, references=image.captions) for image in images]


def read_targets(path: Path) -> list[Target]:
    """Read the references of a file in COCO's captions format, without its images.

    Raises DataError: the file cannot be read, or an image has no caption.
    """
    images = read_captions(path)
    if bare := [image.file_name for image in images if not image.captions]:
        raise DataError(f"{path}: {counted(len(bare), 'image')} without caption (first: {bare[0]})")
    return [
        Target(id=image.id, name=image.file_name, references=image.captions) for image in images
    ]


def read_predictions(path: Path, images: Sequence[Target]) -> Predictions:
    """Read captions that another program made.

    An entry names its image by id, file name, stem of the file name, or the number at the end of
    the stem, in this order. A stem or number that several images share names none of them.

    Args:
        path: COCO results, a JSON list of {"image_id": 7, "caption": "..."}; or caption records
            with "image" and "caption", as JSON Lines, CSV or Parquet. A null caption has no words.
        images: the split.

    Raises DataError: the file cannot be read, has another format, or names no image of the split.
    """
    index = _Index(images)
    captions: list[str | None] = [None] * len(images)
    names: dict[str, list[str]] = defaultdict(list)  # of the entries with each problem
    for number, entry in _entries(path):
        name, caption = _read(entry, f"{path}: entry {number}")
        place = index.find(name)
        if place is None:
            names["whose image is not in the split or not unique, skipped"].append(name)
        elif caption is None:
            names["missing because captioning the image failed"].append(name)
        elif captions[place] is not None:
            names["for an image that already has one, skipped"].append(name)
        else:
            captions[place] = caption
            if not caption.strip():
                names["without a word, scored as such"].append(name)
    problems = [
        f"{path}: {counted(len(found), 'caption')} {problem} (first: {found[0]})"
        for problem, found in names.items()
    ]
    missing = [image.name for image, text in zip(images, captions, strict=True) if text is None]
    if len(missing) == len(images):
        reason = (
            f"{path} has captions for none of the {len(images):,} images of the split: image_id "
            "must be an image's id or image its file name"
        )
        raise DataError("\n".join([reason, *problems]))
    if missing:
        problems.append(
            f"{path} has no caption for {len(missing):,} of {len(images):,} images (first: "
            f"{missing[0]}); the scores are not scores of the whole split"
        )
    return Predictions(captions=captions, problems=problems, path=path)


class _Index:
    """Finds images by id or file name, by the stem of the name, and by the number at its end."""

    def __init__(self, images: Sequence[Target]) -> None:
        names = [image.name for image in images]
        exact = {name: place for place, name in enumerate(names)}
        exact |= {str(image.id): place for place, image in enumerate(images)}
        self._tables = exact, _unique(map(_stem, names)), _unique(map(_number, names))

    def find(self, name: str) -> int | None:
        """Return the position of an image in the split, or None."""
        pairs = zip(self._tables, (name, _stem(name), _number(name)), strict=True)
        return next((table[key] for table, key in pairs if key in table), None)


def _unique(keys: Iterable[str]) -> dict[str, int]:
    """Return the position of each key that occurs once and is not empty."""
    keys = list(keys)
    counts = Counter(keys)
    return {key: place for place, key in enumerate(keys) if key and counts[key] == 1}


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


def _number(name: str) -> str:
    """Return the number at the end of the stem without leading zeros, or ""."""
    number = _TAIL_NUMBER.search(_stem(name))
    return str(int(number[1])) if number else ""


def _entries(path: Path) -> list[tuple[int, Any]]:
    """Read the entries of a file, numbered from 1."""
    if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        return list(enumerate(read_table(path, name=str(path)).to_dict("records"), start=1))
    return read_json_rows(path, name=str(path))


def _read(entry: Any, where: str) -> tuple[str, str | None]:
    """Return the name of an entry's image, and its caption or None if the image failed."""
    if not isinstance(entry, Mapping):
        raise DataError(f"{where} is not a JSON object")
    name, caption = entry.get("image_id", entry.get("image")), entry.get("caption")
    if isinstance(name, float) and name.is_integer():
        name = int(name)
    if not isinstance(name, int | str) or isinstance(name, bool):
        raise DataError(
            f"{where} names no image: add the field image_id, or the field image with the file name"
        )
    if entry.get("error"):
        return str(name), caption or None
    if "caption" not in entry or not isinstance(caption, str | None):
        raise DataError(f"{where} has no caption")
    return str(name), caption or ""
