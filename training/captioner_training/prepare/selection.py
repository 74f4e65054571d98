"""Select the images of a prepared data set, and their splits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from captioner.errors import DataError
from captioner_training.prepare.files import (
    Found,
    ImageFiles,
    Location,
    base_name,
    casefold_path,
    equal_images,
    read_location,
    to_nfc,
    to_posix,
)
from captioner_training.prepare.listing import (
    ListedImage,
    Problems,
    clean_caption,
    has_word,
    valid_text,
)
from captioner_training.prepare.splits import (
    Fractions,
    keep_rank,
    split_in_folders,
    split_named,
)

_OTHER_NAMES = "images found by another name"
_TWO_SPLITS = "copies in two splits, left out of one"
_OUTSIDE = "photos outside any split, left out"


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectedImage:
    """An image with its location, captions and split."""

    id: int | str
    file_name: str
    location: Location
    captions: tuple[str, ...]
    split: str
    licence: str | None
    row: str = ""  # the place of its first caption

    def identity(self) -> tuple[object, ...]:
        """Return the values that decide the stored bytes, without the path: folders may move."""
        return self.id, self.file_name, self.captions, self.licence, *self.location[1:]


@dataclass(frozen=True, kw_only=True)
class SourceData:
    """A data set to prepare."""

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
    fractions: Fractions | None = None,
) -> tuple[list[SelectedImage], str]:
    """Return the usable images of a data set, in the order of `listed`.

    Splits of the data set are kept. Copies of a photo are in one split.

    Args:
        listed: the images of the data set.
        files: finds their files.
        problems: receives problems and notes.
        fractions: the shares to draw from the images in train and those without a split. None:
            default shares if no image has a split; otherwise images without a split are left out.

    Returns the images, and whether their splits are "as in the data" or "drawn".
    """
    images = list(_unique(listed, problems))
    originals = _find(images, files, problems)
    for at, original in originals.items():
        images[at] = _named_by_place(images[at], original, files)
    places = [*originals]
    groups = [
        [places[index] for index in group]
        for group in equal_images([original.location for original in originals.values()])
    ]
    splits, split_from = _assign(images, originals, groups, fractions)
    selected: dict[int, SelectedImage] = {}
    for at, image in enumerate(images):
        split = splits[at]
        if at in originals and split is None:
            problems.note(_OUTSIDE, image.file_name, file=image.file_name, row=image.row())
            continue
        image = _with_words(image, problems)
        if at in originals and split is not None and image.captions:
            selected[at] = SelectedImage(
                id=image.id if isinstance(image.id, int) else valid_text(image.id),
                file_name=valid_text(image.file_name),
                location=originals[at].location,
                captions=image.captions,
                split=split,
                licence=image.licence,
                row=image.row(),
            )
    _keep_copies_together(selected, groups, problems)
    return _merge(selected.values()), split_from


def _unique(listed: Iterable[ListedImage], problems: Problems) -> Iterator[ListedImage]:
    """Yield images with standard split names.

    An id that occurs again in the same split is noted and left out.
    """
    ids: set[tuple[str | None, int | str]] = set()
    for image in listed:
        split = image.split and _split_name(image.split, image.file_name)
        if (split, image.id) in ids:
            example = f"{image.id} in {split}" if split else str(image.id)
            problems.add("duplicate id", example, file=image.file_name, row=image.row())
            continue
        ids.add((split, image.id))
        yield image._replace(split=split)


def _split_name(name: str, file_name: str) -> str:
    standard = split_named(name) or name.strip().lower()
    if not re.fullmatch(r"[a-z0-9_]+", standard):
        raise DataError(f"{file_name} is in split {name!r}: use names like train, val, test")
    return standard


def _named_by_place(image: ListedImage, found: Found, files: ImageFiles) -> ListedImage:
    """If an image has no split, look for one in the name of its folder or archive."""
    name = to_posix(image.file_name)
    in_name = None if name.startswith("/") else split_in_folders(name)
    return image._replace(split=image.split or in_name or files.split_of(found))


def _with_words(image: ListedImage, problems: Problems) -> ListedImage:
    """Return an image with clean captions; report captions without words."""
    captions = [clean_caption(caption) for caption in image.captions]
    worded = [at for at, caption in enumerate(captions) if has_word(caption)]
    if not captions:
        problems.add("image without caption", image.file_name, row=image.row())
    for at in sorted({*range(len(captions))} - {*worded}):
        problems.add("empty caption", image.file_name, row=image.row(at))
    return image._replace(
        captions=tuple(captions[at] for at in worded),
        rows=tuple(image.row(at) for at in worded) or image.rows,
    )


def _find(images: Sequence[ListedImage], files: ImageFiles, problems: Problems) -> dict[int, Found]:
    """Find images by name, by position; report missing images and note other names."""
    found = {
        at: place
        for at, image in enumerate(images)
        if (
            place := Found(image.file_name, image.location)
            if image.location
            else files.find(image.file_name, image.split)
        )
    }
    names = {(to_nfc(images[at].file_name), place.location) for at, place in found.items()}
    claims = Counter(location for _, location in names)
    reported: set[tuple[str, str | None]] = set()
    for at, image in enumerate(images):
        name, original = image.file_name, found.get(at)
        # A match in another folder is a guess. It is dropped if two names match the same image.
        if original and claims[original.location] > 1 and _is_moved(name, original.name):
            original = None
            del found[at]
        if (name, image.split) in reported:
            continue
        reported.add((name, image.split))
        if original is None:
            problems.add("missing image", name, row=image.row())
        elif to_nfc(base_name(original.name)) != to_nfc(base_name(name)):
            found_as = f"{name} is {original.name}"
            problems.note(_OTHER_NAMES, found_as, file=name, row=image.row())
    return found


def _is_moved(name: str, found: str) -> bool:
    """Whether a name has folders, and the image was found in another one."""
    folder, other = (casefold_path(to_posix(path)).rpartition("/")[0] for path in (name, found))
    return folder not in ("", other)


def _assign(
    images: Sequence[ListedImage],
    originals: Mapping[int, Found],
    groups: Sequence[Sequence[int]],
    fractions: Fractions | None,
) -> tuple[list[str | None], str]:
    """Return the split of each image (None: leave it out), and the origin of the splits."""
    splits: list[str | None] = [image.split for image in images]
    is_split, split_from = any(splits[at] for at in originals), "as in the data"
    for group in groups:
        named = sorted({splits[index] or "" for index in group} - {""}, key=keep_rank)
        for index in group:
            if named and images[index].captions:
                splits[index] = splits[index] or named[0]
    if fractions or not is_split:
        fractions = fractions or Fractions()
        pool = [group for group in groups if {splits[index] for index in group} <= {None, "train"}]
        for group in pool:
            split = fractions.draw(_content(originals[group[0]]))
            for index in group:
                splits[index] = split
        drawn = f"drawn, {fractions}"
        is_rest = is_split and len(pool) < len(groups)
        split_from = f"{split_from}; rest {drawn}" if is_rest else drawn
    return splits, split_from


def _content(found: Found) -> bytes:
    """Return the bytes of a photo; if they cannot be read, which is reported later, its name."""
    try:
        return read_location(found.location)
    except OSError:
        return found.name.encode("utf-8", "surrogateescape")


def _keep_copies_together(
    selected: dict[int, SelectedImage], groups: Sequence[Sequence[int]], problems: Problems
) -> None:
    """Leave out and note copies of a photo in all splits but one, the first by `keep_rank`."""
    for group in groups:
        copies = [(index, image) for index in group if (image := selected.get(index))]
        if len(copies) < 2:
            continue
        keeper = min((image.split for _, image in copies), key=keep_rank)
        kept = next(image for _, image in copies if image.split == keeper)
        for index, image in copies:
            if image.split != keeper:
                del selected[index]
                example = f"{image.file_name} in {image.split} is {kept.file_name} in {keeper}"
                problems.note(_TWO_SPLITS, example, file=image.file_name, row=image.row)


def _merge(images: Iterable[SelectedImage]) -> list[SelectedImage]:
    """Merge the captions of images that are the same file."""
    records: dict[object, SelectedImage] = {}
    for image in images:
        # Images whose ids are not their file names are merged only if the ids are equal.
        place = image.location.path, image.location.offset, image.location.member
        key = (place if image.id == image.file_name else image.id), image.split
        if earlier := records.get(key):
            image = replace(earlier, captions=earlier.captions + image.captions)
        records[key] = image
    return list(records.values())
