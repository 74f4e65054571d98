"""Captions of a split, read and written as COCO results or as caption records."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from captioner.errors import DataError, OutputError
from captioner.files import replace_file
from captioner.tables import read_table
from captioner.terminal import json_line
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
    """

    captions: list[str | None]
    problems: list[str] = field(default_factory=list)


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


def read_whole_split(path: Path, split: Sequence[Target]) -> list[Target]:
    """Read the whole split that the images of `split` are a part of.

    Raises DataError: the file cannot be read, or lacks some of the images.
    """
    whole = read_targets(path)
    ids = {str(target.id) for target in whole}
    if absent := [target.name for target in split if str(target.id) not in ids]:
        raise DataError(
            f"--corpus {path} lacks {len(absent):,} of the {len(split):,} images of this split "
            f"(first: {absent[0]}): use the captions of the whole split"
        )
    return whole


def read_predictions(path: Path, images: Sequence[Target]) -> Predictions:
    """Read captions that another program made.

    Args:
        path: a file of COCO results, a JSON list of {"image_id": 7, "caption": "..."}; or of
            caption records, one JSON object per line with "image" and "caption", or a CSV or
            Parquet table with these columns. A null caption has no words. `image_id` may be
            the image's id (a number or text), the stem of its file name, or the number at the end
            of that stem. `image` is a path whose last parts equal those of the image's name. An
            entry that fits several images is skipped and reported.
        images: the split.

    Raises DataError: the file cannot be read, has neither format, or names no image of the split.
    """
    entries = [(*_named(entry, where), "image_id" in entry) for where, entry in _entries(path)]
    names = _Names(images, paths={name for name, _, by_id in entries if not by_id})
    captions: list[str | None] = [None] * len(images)
    problems: dict[str, list[str]] = {}  # names of the entries with each problem
    for name, caption, by_id in entries:
        places = names.places(name, by_id=by_id)
        if len(places) > 1:
            problem = "matching several images, skipped"
            name = f"{name}: {' or '.join(images[place].name for place in places[:3])}"
        elif not places:
            problem = "whose image is not in the split, skipped"
        elif caption is None:
            problem = "missing because captioning the image failed"
        elif captions[places[0]] is not None:
            problem = "for an image that already has one, skipped"
        else:
            captions[places[0]] = caption
            if caption.strip():
                continue
            problem = "without a word, scored as such"
        problems.setdefault(problem, []).append(name)
    sentences = [
        f"{path}: {len(cases):,} caption{'s' * (len(cases) > 1)} {problem} (first: {cases[0]})"
        for problem, cases in problems.items()
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
    return Predictions(captions=captions, problems=sentences)


class _Names:
    """Finds images of a split by the names that a file uses.

    Args:
        images: the split.
        paths: all paths in the file, each once.
    """

    def __init__(self, images: Sequence[Target], *, paths: Collection[str]) -> None:
        names = [image.name for image in images]
        self._by_id = [
            _index((place, str(image.id)) for place, image in enumerate(images)),
            _index((place, PurePosixPath(name).stem) for place, name in enumerate(names)),
            _index((place, _tail_number(name)) for place, name in enumerate(names)),
        ]
        self._whole = _index(enumerate(names))
        self._ends = _index(
            (place, end) for place, name in enumerate(names) for end in _ends(name)[1:]
        )
        files = _index((place, _ends(name)[-1]) for place, name in enumerate(names))
        counts = Counter(_ends(path)[-1] for path in paths)
        # A file name identifies an image if no other path or image shares it.
        self._alone = {
            file: places for file, places in files.items() if len(places) == 1 and counts[file] == 1
        }

    def places(self, name: str, *, by_id: bool) -> Sequence[int]:
        """Return the images that a name fits, as positions in the split; [] if none."""
        if by_id:
            keys = (name, name, str(int(name)) if name.isdecimal() else "")
            for index, key in zip(self._by_id, keys, strict=True):
                if key in index:
                    return index[key]
        for end in _ends(name):
            if end in self._whole:
                return self._whole[end]
        if name in self._ends:
            return self._ends[name]
        return self._alone.get(_ends(name)[-1], [])


def _index(names: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Return the positions of each name. Empty names are left out."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in names:
        if name and place not in places[name]:
            places[name].append(place)
    return dict(places)


def _tail_number(name: str) -> str:
    """Return the number that the stem of a COCO file name ends with, or ""."""
    number = _TAIL_NUMBER.search(PurePosixPath(name).stem)
    return str(int(number[1])) if number else ""


def _ends(path: str) -> list[str]:
    """Return a path, then the path without its first folder, and so on."""
    parts = path.split("/")
    return ["/".join(parts[first:]) for first in range(len(parts))]


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
) -> None:
    """Write captions as COCO results if the name ends in .json, otherwise as JSON records.

    Raises OutputError: the file cannot be written.
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
