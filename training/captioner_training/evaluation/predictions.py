"""Captions of a split, read and written as COCO results or as caption records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioner.errors import DataError, OutputError
from captioner.files import replace_file
from captioner.terminal import json_line
from captioner_training.data.images import CaptionedImage
from captioner_training.prepare.caption_files import read_coco_file

__all__ = [
    "Predictions",
    "Target",
    "check_replaceable",
    "read_predictions",
    "read_targets",
    "read_whole_split",
    "targets",
    "write_predictions",
]


@dataclass(frozen=True, kw_only=True)
class Target:
    """An image to be captioned: its id, its file name, and its references as they were written."""

    id: int | str
    name: str
    references: tuple[str, ...]


def targets(images: Sequence[CaptionedImage]) -> list[Target]:
    """Take what scoring needs of the images of a split."""
    return [Target(id=one.id, name=one.name, references=one.captions) for one in images]


def read_targets(path: Path) -> list[Target]:
    """Read the references of a file in COCO's captions format, without its images.

    Raises DataError: it cannot be read, or has images without a caption.
    """
    found = read_coco_file(path)
    if bare := [one.file_name for one in found if not one.captions]:
        raise DataError(f"{path} has images without a caption: {len(bare):,}, {bare[0]} the first")
    return [Target(id=one.id, name=one.file_name, references=one.captions) for one in found]


def read_whole_split(path: Path, split: Sequence[Target]) -> list[Target]:
    """Read the whole split of which these images are a part.

    Raises DataError: it cannot be read, or has not all of these images.
    """
    found = read_targets(path)
    known = {str(one.id) for one in found}
    if absent := [one.name for one in split if str(one.id) not in known]:
        raise DataError(
            f"--corpus {path} is not the whole of this split: it lacks {len(absent):,} of its "
            f"{len(split):,} images, {absent[0]} the first"
        )
    return found


@dataclass(kw_only=True)
class Predictions:
    """What a file says of a split.

    captions: of each image in the order of the split; None where the file has none.
    problems: what is wrong with the file, a sentence each.
    """

    captions: list[str | None]
    problems: list[str] = field(default_factory=list)


def read_predictions(path: Path, images: Sequence[Target]) -> Predictions:
    """Read captions that were made elsewhere.

    Args:
        path: COCO results, a JSON list of {"image_id": 7, "caption": "..."}; or caption records, a
            JSON object a line with "image", a path that ends in the image's name in the split, or
            the end of that name; or that has the file name of one image alone, as no other path.
        images: the split.

    Raises DataError: the file cannot be read, is in neither format, or names no image of the split.
    """
    entries = [(*_named(entry, where), "image_id" in entry) for where, entry in _entries(path)]
    names = _Names(images, paths={name for name, _, by_id in entries if not by_id})
    captions: list[str | None] = [None] * len(images)
    problems: dict[str, list[str]] = {}  # the names of those that have each
    for name, caption, by_id in entries:
        at = names.place(name, by_id=by_id)
        if at is None:
            problem = "whose image is not in the split, left out"
        elif caption is None:
            problem = "missing: the records say the image failed"
        elif captions[at] is not None:
            problem = "for an image that has one already, left out: the first counts"
        else:
            captions[at] = caption
            if caption.strip():
                continue
            problem = "without a word, scored all the same"
        problems.setdefault(problem, []).append(name)
    missing = [one.name for one, caption in zip(images, captions, strict=True) if caption is None]
    if images and len(missing) == len(images):
        raise DataError(
            f"{path} has captions for none of the {len(images):,} images of the split: image_id is "
            "to be the image's id there, or image its file name"
        )
    sentences = [
        f"{path}: {len(each):,} caption{'s' * (len(each) > 1)} {problem} ({each[0]} the first)"
        for problem, each in problems.items()
    ]
    if missing:
        sentences.append(
            f"{path} has no caption for {len(missing):,} of {len(images):,} images ({missing[0]} "
            "the first): the others are scored, which is not a score of the whole split"
        )
    return Predictions(captions=captions, problems=sentences)


class _Names:
    """Finds images of a split by what a file calls them; what two could be is neither.

    Args:
        images: the split.
        paths: all that the file has, each once.
    """

    def __init__(self, images: Sequence[Target], *, paths: Collection[str]) -> None:
        self._ids = {str(one.id): place for place, one in enumerate(images)}
        self._whole: dict[str, int | None] = {}
        self._ends: dict[str, int | None] = {}
        for place, one in enumerate(images):
            name, *ends = _ends(one.name)
            for known, end in ((self._whole, name), *((self._ends, end) for end in ends)):
                known[end] = None if end in known else place
        bases = Counter(_ends(path)[-1] for path in paths)
        files = Counter(_ends(one.name)[-1] for one in images)
        self._alone = {
            base: place
            for place, one in enumerate(images)
            if bases[base := _ends(one.name)[-1]] == files[base] == 1
        }

    def place(self, name: str, *, by_id: bool) -> int | None:
        """Find an image by its id, or by a path of which the one's end is the other.

        The folders may be others, where no path and no image has the same file name besides.
        """
        if by_id and name in self._ids:
            return self._ids[name]
        for end in _ends(name):
            if end in self._whole:
                return self._whole[end]
        return self._ends.get(name, self._alone.get(_ends(name)[-1]))


def _ends(path: str) -> list[str]:
    """Give a path and what is left of it without its first folder, its second, and so on."""
    parts = path.split("/")
    return ["/".join(parts[first:]) for first in range(len(parts))]


def _entries(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Read the entries of a file with the place where each stands."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    is_list = text.lstrip().startswith("[")
    # Not splitlines: a caption may hold any of the characters that it takes for a new line.
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        content = json.loads(text) if is_list else [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is neither a JSON list of COCO results nor JSON records, one a line: {error}"
        ) from error
    unit = "entry" if is_list else "line"
    found = [(f"{path}, {unit} {number}", one) for number, one in enumerate(content, start=1)]
    for where, one in found:
        if not isinstance(one, dict):
            raise DataError(f"{where} is not a JSON object")
    return found


def _named(entry: Mapping[str, Any], where: str) -> tuple[str, str | None]:
    """Take the image that an entry names, and its caption; None where the image failed."""
    name = entry.get("image_id", entry.get("image"))
    if not isinstance(name, int | str) or isinstance(name, bool):
        raise DataError(f"{where} names no image: it needs image_id, or image, a file name")
    caption = entry.get("caption")
    if not isinstance(caption, str) and "error" not in entry:
        raise DataError(f"{where} has no caption")
    return str(name), caption if isinstance(caption, str) else None


def write_predictions(
    path: Path, images: Sequence[Target], captions: Sequence[str], scores: Sequence[float]
) -> None:
    """Write captions: COCO results where the name ends in .json, else a JSON record a line.

    Raises OutputError: the file cannot be written.
    """
    three = list(zip(images, captions, scores, strict=True))
    if path.suffix.lower() == ".json":
        lines = [json_line([{"image_id": one.id, "caption": text} for one, text, _ in three])]
    else:
        lines = [
            json_line({"image": one.name, "caption": text, "score": score})
            for one, text, score in three
        ]
    with replace_file(path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def check_replaceable(path: Path) -> None:
    """Refuse a file that is there and is not what `write_predictions` writes.

    Raises OutputError: it is something else, which nobody wants to lose.
    """
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return
    ours = ({"image_id", "caption"}, {"image", "caption", "score"})
    try:
        if path.is_file() and all(one.keys() in ours for _, one in _entries(path)):
            return
    except DataError:
        pass
    raise OutputError(
        f"{path} is there, and no file of predictions: --predictions writes over nothing else"
    )
