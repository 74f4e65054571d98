"""From what a data set lists to the images that go into the prepared one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from captioner.paths import is_web_address
from captioner_training.prepare.images import FoundImage, ListedImage
from captioner_training.prepare.names import (
    base_name,
    composed,
    folded,
    folders_of,
    image_suffix,
    stem,
)
from captioner_training.prepare.places import Found, ImageFiles
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.splits import Fractions, keep_rank, split_name
from captioner_training.prepare.texts import has_word
from captioner_training.prepare.twins import equal_images

__all__ = ["gather"]


def gather(
    listed: Iterable[ListedImage], files: ImageFiles, problems: Problems, *, fractions: Fractions
) -> list[FoundImage]:
    """Check what a data set lists; keep what can be used, in its order.

    Raises:
        DataError: a split has a name that cannot be a file's.

    """
    checked = list(_checked(listed, problems))
    by_name = _find((image.file_name for image in checked), files, problems)
    images = [image for image in checked if image.file_name in by_name and image.captions]
    found = [by_name[image.file_name] for image in images]
    usable = [
        FoundImage(
            id=image.id,
            file_name=_text(image.file_name),
            location=one.location,
            captions=image.captions,
            split=split,
            licence=image.licence,
        )
        for image, one, split in zip(images, found, _splits(images, found, fractions), strict=True)
    ]
    return list(_one_record_each(_one_split_each(usable, problems)))


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
    """Find the images by their names; tell those that are missing, and what was not exact."""
    found = {name: files.find(name) for name in dict.fromkeys(names)}
    claims = Counter(
        place for _, place in {(composed(name), one.location) for name, one in found.items() if one}
    )
    for name, one in found.items():
        # In other folders than the name says it is a guess: not where another name means it too.
        if one and _is_moved(name, one) and folders_of(name) and claims[one.location] > 1:
            found[name] = one = None
        if one is None:
            problems.add("missing image", name + files.why_not(name))
        elif one.location.is_loose and _is_moved(name, one):  # in archives that is usual
            example = f"{name} at {one.location.path}"
            problems.note("images found in a subfolder, by file name", example)
        elif stem(base_name(one.name)) == folded(base_name(name)):
            problems.note("images whose names lack the suffix", f"{name} is {one.name}")
        elif composed(base_name(one.name)) != composed(base_name(name)):
            problems.note("images whose names differ in capital letters", f"{name} is {one.name}")
    hint = f"looked in {files}"
    if any(map(is_web_address, found)):
        hint += "; what is named by URL has to be downloaded before"
    problems.explain("missing image", hint)
    return {name: one for name, one in found.items() if one}


def _is_moved(name: str, found: Found) -> bool:
    """Whether an image was found in other folders than its name says."""
    return folders_of(name) != folders_of(found.name)


def _splits(
    images: Sequence[ListedImage], found: Sequence[Found], fractions: Fractions
) -> list[str]:
    """Take over the splits that are named, and draw the others; equal images stay together."""
    splits = [image.split for image in images]
    if None in splits:
        groups = equal_images([one.location for one in found])
        named = [
            min(filter(None, (splits[index] for index in one)), key=keep_rank, default=None)
            for one in groups
        ]
        open_groups = [one for one, split in zip(groups, named, strict=True) if split is None]
        keys = [
            min((_drawn_by(images[index], found[index]) for index in one), key=str)
            for one in open_groups
        ]
        drawn = iter(fractions.draw(keys))
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


def _one_split_each(images: list[FoundImage], problems: Problems) -> list[FoundImage]:
    splits: dict[tuple[str, int, str | None], set[str]] = defaultdict(set)
    for image in images:
        splits[_place(image)].add(image.split)
    if all(len(found) == 1 for found in splits.values()):
        return images
    kept = []
    for image in images:
        found = splits[_place(image)]
        if image.split == min(found, key=keep_rank):
            kept.append(image)
            if len(found) > 1:
                where = ", ".join(sorted(found))
                problems.add("image in two splits", f"{image.file_name} in {where}")
    return kept


def _one_record_each(images: Iterable[FoundImage]) -> Iterable[FoundImage]:
    """Put together what is said of an image that the data set names in several ways."""
    records: dict[object, FoundImage] = {}
    for image in images:
        # Where an id is more than the file's name, somebody may ask for it.
        key = _place(image) if image.id == image.file_name else image.id, image.split
        if known := records.get(key):
            image = replace(known, captions=known.captions + image.captions)
        records[key] = image
    return records.values()


def _place(image: FoundImage) -> tuple[str, int, str | None]:
    return image.location.path, image.location.offset, image.location.member
