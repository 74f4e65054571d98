"""Which of the images that a data set lists go into the prepared one, and into which split."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from captioner.errors import ConfigError, DataError
from captioner.paths import is_web_address
from captioner_training.prepare.listing import ListedImage, Problems, has_word
from captioner_training.prepare.originals import (
    Found,
    ImageFiles,
    Location,
    base_name,
    composed,
    equal_images,
    folders_of,
    image_suffix,
)

__all__ = ["SPLIT_NAMES", "Fractions", "SelectedImage", "SourceData", "select"]

_OTHER_NAMES = "images found by another name"
_OTHER_REMEDY = "nothing, if it is the right photo: it is used"
_FOR_TEST = 200  # images, from which on some are kept for a test unless the user says otherwise
_COPIES = "copies of another photo"
# What others call the three splits.
_SPLITS = {
    "training": "train",
    "restval": "train",  # Karpathy's: COCO's validation images that are neither his val nor test
    "validation": "val",
    "valid": "val",
    "dev": "val",
    "testing": "test",
}
SPLIT_NAMES = frozenset({"train", "val", "test", *_SPLITS})


@dataclass(frozen=True, kw_only=True)
class Fractions:
    """The shares of a data set without splits that become val and test.

    test: None is a tenth from 200 images up, of which what is gained can be told, else nothing.
    """

    val: float = 0.1
    test: float | None = None

    def __post_init__(self) -> None:
        test = self.test or 0
        if not (0 <= self.val < 1 and 0 <= test < 1 and self.val + test < 1):
            raise ConfigError(
                f"--val {self.val} --test {self.test}: give fractions from 0 to 1, less than 1 "
                "together"
            )

    def draw(self, keys: Sequence[int | str]) -> list[str]:
        """Draw the split of each image by a hash of its id, so that others may come and go.

        Chance may leave next to nothing for val where images are few. Then the images whose
        hashes come next are taken too: half of what the fraction promises, and two of ten images
        or more, are certain.
        """
        test = self.test
        if test is None:  # val may leave less than that to train on
            test = min(0.1, (1 - self.val) / 2) if len(keys) >= _FOR_TEST else 0.0
        chances = [_chance(key) for key in keys]
        vals = sum(chance < self.val for chance in chances)
        tests = sum(chance < self.val + test for chance in chances) - vals
        vals = max(vals, _least(self.val, len(keys)))
        scored = vals + max(tests, _least(test, len(keys)))
        splits = ["train"] * len(keys)
        order = sorted(range(len(keys)), key=chances.__getitem__)
        for rank, index in enumerate(order[:-1][:scored]):  # something is left to train on
            splits[index] = "val" if rank < vals else "test"
        return splits


def _least(fraction: float, count: int) -> int:
    return max(math.ceil(fraction * count / 2), 2 if count >= 10 else 1) if fraction else 0


def _chance(key: int | str) -> float:
    digest = hashlib.sha256(str(key).encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectedImage:
    """An image that was found, with its captions and split."""

    id: int | str
    file_name: str
    location: Location
    captions: tuple[str, ...]
    split: str
    licence: str | None
    row: str = ""  # where its first caption stands

    def identity(self) -> tuple[object, ...]:
        """All that decides what is stored of it; not the folder, which may have another name."""
        return self.id, self.file_name, self.captions, self.licence, *self.location[1:]


@dataclass(frozen=True, kw_only=True)
class SourceData:
    """A data set as it was found."""

    name: str
    images: list[SelectedImage]
    problems: Problems
    source: dict[str, Any]  # kind and options, for the manifest
    licence: str | None = None


def select(
    listed: Iterable[ListedImage],
    files: ImageFiles,
    problems: Problems,
    *,
    fractions: Fractions,
    published: bool = False,
) -> list[SelectedImage]:
    """Check what a data set lists; keep what can be used, in its order.

    `fractions` are the shares of images without a split. Splits that are `published` stay as they
    are, images that two of them share included: scores on them must stay comparable.

    Raises DataError: a split has a name that cannot be a file's.
    """
    checked = list(_checked(listed, problems))
    by_name = _find(checked, files, problems)
    images = [image for image in checked if image.file_name in by_name and image.captions]
    found = [by_name[image.file_name] for image in images]
    groups = equal_images([one.location for one in found])
    selected = [
        SelectedImage(
            id=image.id,
            file_name=_valid(image.file_name),
            location=one.location,
            captions=image.captions,
            split=split,
            licence=image.licence,
            row=image.row(),
        )
        for image, one, split in zip(
            images, found, _splits(images, found, groups, fractions), strict=True
        )
    ]
    left_out = _in_two_splits(selected, groups, problems, published=published)
    _note_copies(images, found, groups, left_out, problems)
    return _one_record_each(one for at, one in enumerate(selected) if at not in left_out)


def _checked(listed: Iterable[ListedImage], problems: Problems) -> Iterator[ListedImage]:
    """Yield each image once, its captions in one line each, its split under our name."""
    ids: set[tuple[str | None, int | str]] = set()
    for image in listed:
        split = image.split and _split_name(image.split, image.file_name)
        name = image.file_name
        if (split, image.id) in ids:
            example = f"{image.id} in {split}" if split else str(image.id)
            problems.add("duplicate id", example, file=name, row=image.row())
            continue
        ids.add((split, image.id))
        captions = [" ".join(_valid(caption).split()) for caption in image.captions]
        worded = [at for at, caption in enumerate(captions) if has_word(caption)]
        if not captions:
            problems.add("image without caption", name, row=image.row())
        for at in sorted({*range(len(captions))} - {*worded}):
            problems.add("empty caption", name, row=image.row(at))
        yield image._replace(
            captions=tuple(captions[at] for at in worded),
            split=split,
            rows=tuple(image.row(at) for at in worded) or image.rows,
        )


def _split_name(name: str, file_name: str) -> str:
    ours = name.strip().lower()
    ours = _SPLITS.get(ours, ours)
    if not re.fullmatch(r"[a-z0-9_]+", ours):
        raise DataError(f"{file_name} is in split {name!r}: name splits like train, val, test")
    return ours


def _valid(text: str) -> str:
    """Replace what is not valid in UTF-8, as file names may be."""
    return text.encode("utf-8", "replace").decode()


def _find(images: Iterable[ListedImage], files: ImageFiles, problems: Problems) -> dict[str, Found]:
    """Find the images by their names; report those that are missing, note what was not exact."""
    rows = {image.file_name: image.row() for image in images}
    found = {
        image.file_name: Found(image.file_name, image.location)
        if image.location
        else files.find(image.file_name)
        for image in images
    }
    claims = Counter(
        place for _, place in {(composed(name), one.location) for name, one in found.items() if one}
    )
    for name, one in found.items():
        moved = one and folders_of(name) != folders_of(one.name)
        # In other folders than the name says it is a guess: not where another name means it too.
        if one and moved and folders_of(name) and claims[one.location] > 1:
            found[name] = one = None
        if one is None:
            problems.add("missing image", name + files.why_not(name), file=name, row=rows[name])
        elif one.location.is_loose and moved:  # in archives that is usual
            found_as = f"{name} at {one.location.path}"
            problems.note(_OTHER_NAMES, found_as, file=name, row=rows[name], remedy=_OTHER_REMEDY)
        elif composed(base_name(one.name)) != composed(base_name(name)):
            found_as = f"{name} is {one.name}"
            problems.note(_OTHER_NAMES, found_as, file=name, row=rows[name], remedy=_OTHER_REMEDY)
    hint = f"looked in {files}"
    if any(map(is_web_address, found)):
        hint += "; what is named by URL has to be downloaded before"
    problems.explain("missing image", hint)
    return {name: one for name, one in found.items() if one}


def _keep_rank(split: str) -> tuple[int, str]:
    """Order splits by who keeps an image that stands in two: what is scored before train."""
    return {"test": 0, "val": 1}.get(split, 2), split


def _splits(
    images: Sequence[ListedImage],
    found: Sequence[Found],
    groups: Sequence[Sequence[int]],
    fractions: Fractions,
) -> list[str]:
    """Take over the splits that are named, and draw the others; equal images stay together."""
    named: list[str | None] = []
    keys: list[int | str] = []
    for group in groups:
        splits = [split for index in group if (split := images[index].split)]
        named.append(min(splits, key=_keep_rank, default=None))
        if not splits:
            keys.append(min((_key(images[index], found[index]) for index in group), key=str))
    drawn = iter(fractions.draw(keys))
    chosen = [""] * len(images)
    for group, split in zip(groups, named, strict=True):
        of_group = split or next(drawn)
        for index in group:
            chosen[index] = images[index].split or of_group
    return chosen


def _key(image: ListedImage, found: Found) -> int | str:
    """Give what decides the split: the id; where it is a file name, composed and with a suffix."""
    if image.id != image.file_name:
        return image.id
    name = composed(image.file_name)
    return name if image_suffix(name) else name + image_suffix(found.name)


def _in_two_splits(
    images: Sequence[SelectedImage],
    groups: Sequence[Sequence[int]],
    problems: Problems,
    *,
    published: bool,
) -> set[int]:
    """Report images of equal bytes in two splits; return the positions of those to leave out."""
    left_out: set[int] = set()
    for group in groups:
        names = dict[str, str]()
        for index in group:
            names.setdefault(images[index].split, images[index].file_name)
        if len(names) < 2:
            continue
        example = ", ".join(f"{name} in {split}" for split, name in sorted(names.items()))
        if published:
            problems.note("the same image in two splits, kept as published", example)
            continue
        problems.add("image in two splits", example, file=images[group[0]].file_name)
        keeper = min(names, key=_keep_rank)
        left_out.update(index for index in group if images[index].split != keeper)
    return left_out


def _note_copies(
    images: Sequence[ListedImage],
    found: Sequence[Found],
    groups: Sequence[Sequence[int]],
    left_out: set[int],
    problems: Problems,
) -> None:
    for group in groups:
        first, *others = [at for at in group if at not in left_out] or group
        for at in others:
            if found[at].location != found[first].location:
                problems.note(
                    _COPIES,
                    f"{images[at].file_name} is {images[first].file_name}",
                    file=images[at].file_name,
                    row=images[at].row(),
                    remedy="nothing: both are used, in the same split; or take one of them out",
                )


def _one_record_each(images: Iterable[SelectedImage]) -> list[SelectedImage]:
    """Put together what is said of an image that the data set names in several ways."""
    records: dict[object, SelectedImage] = {}
    for image in images:
        # Where an id is more than the file's name, somebody may ask for it.
        place = image.location.path, image.location.offset, image.location.member
        key = (place if image.id == image.file_name else image.id), image.split
        if known := records.get(key):
            image = replace(known, captions=known.captions + image.captions)
        records[key] = image
    return list(records.values())
