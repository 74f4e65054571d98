"""From what a data set lists to the images that go into the prepared one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from captioner.paths import is_web_address
from captioner_training.prepare.listing import ListedImage, Problems
from captioner_training.prepare.places import (
    Found,
    ImageFiles,
    Location,
    base_name,
    composed,
    equal_images,
    folders_of,
    image_suffix,
)
from captioner_training.prepare.splits import Fractions, keep_rank, split_name
from captioner_training.prepare.texts import has_word

__all__ = ["FoundImage", "SourceData", "gather"]

_OTHER_NAMES = "images found by another name"


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundImage:
    """An image that was found, with its captions and split."""

    id: int | str
    file_name: str
    location: Location
    captions: tuple[str, ...]
    split: str
    licence: str | None

    def identity(self) -> tuple[object, ...]:
        """All that decides what is stored of it; not the folder, which may have another name."""
        return self.id, self.file_name, self.captions, self.licence, *self.location[1:]


@dataclass(frozen=True, kw_only=True)
class SourceData:
    """A data set as it was found."""

    name: str
    images: list[FoundImage]
    problems: Problems
    source: dict[str, Any]  # kind and options, for the manifest
    licence: str | None = None


def gather(
    listed: Iterable[ListedImage],
    files: ImageFiles,
    problems: Problems,
    *,
    fractions: Fractions,
    published: bool = False,
) -> list[FoundImage]:
    """Check what a data set lists; keep what can be used, in its order.

    Args:
        listed: its images.
        files: the places where they are looked for.
        problems: gets what is wrong.
        fractions: the shares of images without a split.
        published: whether its splits stay as they are, images that two of them share included:
            scores on them must stay comparable.

    Raises:
        DataError: a split has a name that cannot be a file's.

    """
    checked = list(_checked(listed, problems))
    by_name = _find((image.file_name for image in checked), files, problems)
    images = [image for image in checked if image.file_name in by_name and image.captions]
    found = [by_name[image.file_name] for image in images]
    groups = equal_images([one.location for one in found])
    splits = _splits(images, found, groups, fractions)
    usable = [
        FoundImage(
            id=image.id,
            file_name=_text(image.file_name),
            location=one.location,
            captions=image.captions,
            split=split,
            licence=image.licence,
        )
        for image, one, split in zip(images, found, splits, strict=True)
    ]
    left_out = _in_two_splits(usable, groups, problems, published=published)
    return _one_record_each(one for at, one in enumerate(usable) if at not in left_out)


def _checked(listed: Iterable[ListedImage], problems: Problems) -> Iterable[ListedImage]:
    """Yield each image once, its captions in one line each, its split under our name."""
    ids: set[tuple[str | None, int | str]] = set()
    for image in listed:
        split = image.split and split_name(image.split, file_name=image.file_name)
        if (split, image.id) in ids:
            problems.add("duplicate id", f"{image.id} in {split}" if split else str(image.id))
            continue
        ids.add((split, image.id))
        captions = tuple(" ".join(_text(caption).split()) for caption in image.captions)
        if empty := sum(not has_word(caption) for caption in captions):
            problems.add("empty caption", image.file_name, count=empty)
            captions = tuple(filter(has_word, captions))
        elif not captions:
            problems.add("image without caption", image.file_name)
        yield image._replace(captions=captions, split=split)


def _text(text: str) -> str:
    """Replace what is not valid in UTF-8, as file names may be."""
    return text.encode("utf-8", "replace").decode()


def _find(names: Iterable[str], files: ImageFiles, problems: Problems) -> dict[str, Found]:
    """Find the images by their names; report those that are missing, note what was not exact."""
    found = {name: files.find(name) for name in dict.fromkeys(names)}
    claims = Counter(
        place for _, place in {(composed(name), one.location) for name, one in found.items() if one}
    )
    for name, one in found.items():
        moved = one and folders_of(name) != folders_of(one.name)
        # In other folders than the name says it is a guess: not where another name means it too.
        if one and moved and folders_of(name) and claims[one.location] > 1:
            found[name] = one = None
        if one is None:
            problems.add("missing image", name + files.why_not(name))
        elif one.location.is_loose and moved:  # in archives that is usual
            problems.note(_OTHER_NAMES, f"{name} at {one.location.path}")
        elif composed(base_name(one.name)) != composed(base_name(name)):
            problems.note(_OTHER_NAMES, f"{name} is {one.name}")
    hint = f"looked in {files}"
    if any(map(is_web_address, found)):
        hint += "; what is named by URL has to be downloaded before"
    problems.explain("missing image", hint)
    return {name: one for name, one in found.items() if one}


def _splits(
    images: Sequence[ListedImage],
    found: Sequence[Found],
    groups: Sequence[Sequence[int]],
    fractions: Fractions,
) -> list[str]:
    """Take over the splits that are named, and draw the others; equal images stay together."""
    splits = [image.split for image in images]
    named = [
        min(filter(None, (splits[index] for index in group)), key=keep_rank, default=None)
        for group in groups
    ]
    drawn = iter(
        fractions.draw([
            min((_drawn_by(images[index], found[index]) for index in group), key=str)
            for group, split in zip(groups, named, strict=True)
            if split is None
        ])
    )  # fmt: skip
    for group, split in zip(groups, named, strict=True):
        chosen = split or next(drawn)
        for index in group:
            splits[index] = splits[index] or chosen
    return [split or "train" for split in splits]


def _drawn_by(image: ListedImage, found: Found) -> int | str:
    """Give what decides the split: the id; where it is a file name, composed and with a suffix."""
    if image.id != image.file_name:
        return image.id
    name = composed(image.file_name)
    return name if image_suffix(name) else name + image_suffix(found.name)


def _in_two_splits(
    images: Sequence[FoundImage],
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
        problems.add("image in two splits", example)
        keeper = min(names, key=keep_rank)
        left_out.update(index for index in group if images[index].split != keeper)
    return left_out


def _one_record_each(images: Iterable[FoundImage]) -> list[FoundImage]:
    """Put together what is said of an image that the data set names in several ways."""
    records: dict[object, FoundImage] = {}
    for image in images:
        # Where an id is more than the file's name, somebody may ask for it.
        place = image.location.path, image.location.offset, image.location.member
        key = (place if image.id == image.file_name else image.id), image.split
        if known := records.get(key):
            image = replace(known, captions=known.captions + image.captions)
        records[key] = image
    return list(records.values())
