"""Captions of a split that another program made: COCO results or caption records."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from captioner.errors import DataError
from captioner.shared.tables import read_json_rows, read_table
from captioner.shared.text import counted
from captioner.vocabulary import Tokenizer, has_no_spaces, tokenize
from captioner_training.data.images import Captioned, CaptionedImage, ImageStore
from captioner_training.data.reading import captioned_images, read_captions
from captioner_training.evaluation.scores import token_name

_TAIL_NUMBER = re.compile(r"(?:^|_)([0-9]{1,18})$")  # COCO_val2014_000000391895


@dataclass(frozen=True, kw_only=True)
class Captions:
    """Captions of a split, from a file or from a model.

    images: the images of the split that have a caption.
    texts, words: the captions, as written and as tokens.
    tokens: a description of the tokens.
    facts: entries for the report: the file and its problems, or the model and its settings.
    captioned: the captions with their attention; empty for captions from a file.
    columns: values of the images for the rows of report.json.
    """

    images: Sequence[CaptionedImage]
    texts: Sequence[str]
    words: Sequence[Sequence[str]]
    tokens: str
    facts: dict[str, Any]
    captioned: Sequence[Captioned] = ()
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def read_references(path: Path, words: Callable[[str], list[str]]) -> list[CaptionedImage]:
    """Read the references of a file in COCO's captions format, without the photos.

    Raises DataError: the file cannot be read, or an image has no caption.
    """
    images = read_captions(path)
    if bare := [image.file_name for image in images if not image.captions]:
        raise DataError(f"{path}: {counted(len(bare), 'image')} without caption (first: {bare[0]})")
    store = ImageStore.from_members((), pattern=path, identity="")
    return captioned_images(images, store, words)


def tokenizer_of(images: Sequence[CaptionedImage]) -> Tokenizer:
    """Return the tokenizer for references in their script."""
    unspaced = has_no_spaces(text for image in images for text in image.captions)
    return "characters" if unspaced else "words"


def read_predictions(
    path: Path, images: Sequence[CaptionedImage], tokenizer: Tokenizer = "words"
) -> Captions:
    """Read captions that another program made.

    An entry names its image by id, file name, stem of the file name, or the number at the end of
    the stem, in this order. A stem or number that several images share names none of them.

    Args:
        path: COCO results, a JSON list of {"image_id": 7, "caption": "..."}; or caption records
            with "image" and "caption", as JSON Lines, CSV or Parquet. A null caption has no words.
        images: the split.
        tokenizer: splits the captions into words.

    Raises DataError: the file cannot be read, has another format, or names no image of the split.
    """
    names = [image.name for image in images]
    exact = {name: place for place, name in enumerate(names)}
    exact |= {str(image.id): place for place, image in enumerate(images)}
    tables = exact, _unique(map(_stem, names)), _unique(map(_number, names))
    captions: list[str | None] = [None] * len(images)
    entries: dict[str, list[str]] = defaultdict(list)  # names of the entries with each problem
    for number, entry in _entries(path):
        name, caption = _read(entry, f"{path}: entry {number}")
        keys = zip(tables, (name, _stem(name), _number(name)), strict=True)
        place = next((table[key] for table, key in keys if key in table), None)
        if place is None:
            entries["whose image is not in the split or not unique, skipped"].append(name)
        elif caption is None:
            entries["missing because captioning the image failed"].append(name)
        elif captions[place] is not None:
            entries["for an image that already has one, skipped"].append(name)
        else:
            captions[place] = caption
            if not caption.strip():
                entries["without a word, scored as such"].append(name)
    problems = [
        f"{path}: {counted(len(found), 'caption')} {problem} (first: {found[0]})"
        for problem, found in entries.items()
    ]
    missing = [name for name, text in zip(names, captions, strict=True) if text is None]
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
    pairs = [
        (image, text) for image, text in zip(images, captions, strict=True) if text is not None
    ]
    return Captions(
        images=[image for image, _ in pairs],
        texts=[text for _, text in pairs],
        words=[tokenize(text, tokenizer) for _, text in pairs],
        tokens=token_name(tokenizer),
        facts={"predictions": str(path), "problems": problems, "scored": len(pairs)},
    )


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
