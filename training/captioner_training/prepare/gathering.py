"""From what a data set lists to the images that go into the prepared one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from captioner.paths import is_web_address
from captioner_training.prepare.images import FoundImage, ListedImage
from captioner_training.prepare.places import ImageFiles, Location
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
    locations = _locate([image.file_name for image in checked], files, problems)
    usable = [
        (image, location)
        for image, location in zip(checked, locations, strict=True)
        if location is not None and image.captions
    ]
    images = [image for image, _ in usable]
    places = [location for _, location in usable]
    found = [
        FoundImage(
            id=image.id,
            file_name=_text(image.file_name),
            location=location,
            captions=image.captions,
            split=split,
            licence=image.licence,
        )
        for image, location, split in zip(
            images, places, _splits(images, places, fractions), strict=True
        )
    ]
    return _one_split_each(found, problems)


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


def _locate(
    names: Sequence[str], files: ImageFiles, problems: Problems
) -> Sequence[Location | None]:
    """Find the images where their names say, else where there is one file of that name."""
    places = [files.find(name) for name in names]
    taken = set(filter(None, places))
    claims: dict[Location, set[str]] = defaultdict(set)
    elsewhere: dict[str, Location] = {}
    for name, place in zip(names, places, strict=True):
        if place is None and (other := files.find_elsewhere(name)) and other not in taken:
            elsewhere[name] = other
            claims[other].add(name)
    # A file that two names could mean is neither's.
    sure = {name: place for name, place in elsewhere.items() if len(claims[place]) == 1}
    places = [place or sure.get(name) for name, place in zip(names, places, strict=True)]
    for name, place in zip(names, places, strict=True):
        if place is None:
            problems.add("missing image", name + files.why_not(name))
    for name, place in sure.items():
        if not files.is_archive(place.path):  # there, folders before the names are usual
            problems.note("images found in a subfolder, by file name", f"{name} at {place.path}")
    hint = f"looked in {files}"
    if any(is_web_address(name) for name in names):
        hint += "; what is named by URL has to be downloaded before"
    problems.explain("missing image", hint)
    return places


def _splits(
    images: Sequence[ListedImage], places: Sequence[Location], fractions: Fractions
) -> list[str]:
    """Take over the splits that are named, and draw the others; equal images stay together."""
    splits = [image.split for image in images]
    if None in splits:
        groups = equal_images(places)
        named = [
            min(filter(None, (splits[index] for index in one)), key=keep_rank, default=None)
            for one in groups
        ]
        open_groups = [one for one, split in zip(groups, named, strict=True) if split is None]
        keys = [min((images[index].id for index in one), key=str) for one in open_groups]
        drawn = iter(fractions.draw(keys))
        for group, split in zip(groups, named, strict=True):
            chosen = split or next(drawn)
            for index in group:
                splits[index] = splits[index] or chosen
    return [split or "train" for split in splits]


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


def _place(image: FoundImage) -> tuple[str, int, str | None]:
    return image.location.path, image.location.offset, image.location.member
