"""Captions of a split, read and written as COCO results or as caption records."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from captioner.errors import DataError, OutputError
from captioner.shared.files import replace_file
from captioner.shared.tables import read_table
from captioner.shared.text import json_line
from captioner_training.data.coco import read_captions
from captioner_training.data.images import CaptionedImage

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
    path: the file.
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
        raise DataError(f"{path}: {len(bare):,} images have no caption (first: {bare[0]})")
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
    entries = [_named(entry, where) for where, entry in _entries(path)]
    index = _Index(images)
    captions: list[str | None] = [None] * len(images)
    problems: dict[str, list[str]] = {}  # names of the entries with each problem
    for name, caption in entries:
        place = index.find(name)
        if place is None:
            problem = "whose image is not in the split or not unique, skipped"
        elif caption is None:
            problem = "missing because captioning the image failed"
        elif captions[place] is not None:
            problem = "for an image that already has one, skipped"
        else:
            captions[place] = caption
            if caption.strip():
                continue
            problem = "without a word, scored as such"
        problems.setdefault(problem, []).append(name)
    sentences = [
        f"{path}: {len(names):,} caption{'s' * (len(names) > 1)} {problem} (first: {names[0]})"
        for problem, names in problems.items()
    ]
    missing = [
        image.name for image, caption in zip(images, captions, strict=True) if caption is None
    ]
    if images and len(missing) == len(images):
        raise DataError(
            f"{path} has captions for none of the {len(images):,} images of the split: image_id "
            "must be an image's id or image its file name"
            + "".join(f"\n{sentence}" for sentence in sentences)
        )
    if missing:
        sentences.append(
            f"{path} has no caption for {len(missing):,} of {len(images):,} images (first: "
            f"{missing[0]}); the scores are not scores of the whole split"
        )
    return Predictions(captions=captions, problems=sentences, path=path)


class _Index:
    """Finds images by id or file name, by the stem of the name, and by the number at its end."""

    def __init__(self, images: Sequence[Target]) -> None:
        names = [image.name for image in images]
        self._exact = {name: place for place, name in enumerate(names)}
        self._exact |= {str(image.id): place for place, image in enumerate(images)}
        self._stems = _unique(map(_stem, names))
        self._numbers = _unique(map(_number, names))

    def find(self, name: str) -> int | None:
        """Return the position of an image in the split, or None."""
        for index, key in (
            (self._exact, name),
            (self._stems, _stem(name)),
            (self._numbers, _number(name)),
        ):
            if key in index:
                return index[key]
        return None


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


def _entries(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Read the entries of a file, each with its location for error messages."""
    if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        table = read_table(path, name=str(path))
        rows = table.to_dict("records")
        return [
            (f"{path}, row {number}", {str(key): value for key, value in row.items()})
            for number, row in enumerate(rows, start=1)
        ]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    is_list = text.lstrip().startswith("[")
    # Not splitlines: captions may contain characters that it treats as line ends.
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        content = json.loads(text) if is_list else [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is neither a JSON list of COCO results nor JSON records, one per line: {error}"
        ) from error
    unit = "entry" if is_list else "line"
    entries = [(f"{path}, {unit} {number}", entry) for number, entry in enumerate(content, start=1)]
    for where, entry in entries:
        if not isinstance(entry, dict):
            raise DataError(f"{where} is not a JSON object")
    return entries


def _named(entry: Mapping[str, Any], where: str) -> tuple[str, str | None]:
    """Return the name of an entry's image, and its caption or None if the image failed."""
    name = entry.get("image_id", entry.get("image"))
    if isinstance(name, float) and name.is_integer():
        name = int(name)
    if not isinstance(name, int | str) or isinstance(name, bool):
        raise DataError(
            f"{where} names no image: add the field image_id, or the field image with the file name"
        )
    caption = entry.get("caption")
    if entry.get("error"):
        return str(name), caption or None
    if "caption" not in entry or not isinstance(caption, str | None):
        raise DataError(f"{where} has no caption")
    return str(name), caption or ""


def write_predictions(
    path: Path, images: Sequence[Target], captions: Sequence[str], scores: Sequence[float]
) -> str:
    """Write captions as COCO results if the name ends in .json, otherwise as JSON records.

    Returns the path as text. Raises OutputError: the file cannot be written.
    """
    rows = list(zip(images, captions, scores, strict=True))
    if path.suffix.lower() == ".json":
        lines = [json_line([{"image_id": image.id, "caption": text} for image, text, _ in rows])]
    else:
        lines = [
            json_line({"image": image.name, "caption": text, "score": score})
            for image, text, score in rows
        ]
    with replace_file(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return str(path)


def check_replaceable(path: Path) -> None:
    """Refuse to overwrite a file that `write_predictions` did not write.

    Raises OutputError: the file has other content.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    ours = ({"image_id", "caption"}, {"image", "caption", "score"})
    try:
        if path.is_file() and all(entry.keys() in ours for _, entry in _entries(path)):
            return
    except DataError:
        pass
    raise OutputError(
        f"{path} exists and is not a file of predictions; choose another --predictions"
    )
