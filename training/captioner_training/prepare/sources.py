"""Read a data set of any kind: list its images, find their files, and select images and splits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner.shared.paths import absolute, expanded
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.files import (
    Found,
    ImageFiles,
    SourceImage,
    base_name,
    casefold_path,
    equal_images,
    read_location,
    to_nfc,
    to_posix,
)
from captioner_training.prepare.folders import list_folder
from captioner_training.prepare.problems import Problems, clean_caption, valid_text
from captioner_training.prepare.splits import (
    Fractions,
    common_folder,
    keep_rank,
    split_in_folders,
    split_named,
)
from captioner_training.prepare.tables import list_tables


@dataclass(frozen=True, kw_only=True)
class SourceData:
    """A data set to prepare. Its images have locations and splits."""

    name: str
    images: list[SourceImage]
    problems: Problems
    source: dict[str, Any]  # kind and options, for the manifest
    licence: str | None = None


def read_source(
    kind: str,
    paths: Sequence[str],
    *,
    images: Sequence[str] = (),
    columns: Columns | None = None,
    fractions: Fractions | None = None,
) -> SourceData:
    """Read a data set, find its images and check everything.

    Args:
        kind: a kind of `captioner prepare` except coco.
        paths: a folder, or files, each as [SPLIT=]FILE.
        images: places of the images; empty: the folders of the files.
        columns: the columns of tables.
        fractions: the shares of val and test to draw; None: see select.

    Raises:
        ConfigError: columns are missing.
        DataError: a file or the images cannot be read.
    """
    problems, files = Problems(), list(map(_split_argument, paths))
    if kind == "folder":
        listed, folders = list_folder(paths, problems)
    else:
        listed, folders = list_tables(files, columns or Columns(), problems)
    if not listed and not problems:
        raise DataError(f"{', '.join(paths)}: no photos found")
    selected, splits = select(listed, ImageFiles(images or folders), problems, fractions=fractions)
    origin = common_folder([path for _, path in files]) if len(files) > 1 else absolute(files[0][1])
    source: dict[str, Any] = {"kind": kind, "path": valid_text(str(origin))}
    if len(paths) > 1:
        source = {"kind": kind, "files": [*map(valid_text, paths)]}
    if images:
        source["images"] = [*map(valid_text, images)]
    return SourceData(
        name=valid_text(origin.name if origin.is_dir() else origin.stem),
        images=selected,
        problems=problems,
        source={**source, "splits": splits},
    )


def _split_argument(argument: str) -> tuple[str, Path]:
    """Parse [SPLIT=]FILE. File names may contain an equals sign."""
    split, equals, name = argument.partition("=")
    if equals and split and "/" not in split and not expanded(argument).exists():
        return split, expanded(name)
    return "", expanded(argument)


def select(
    listed: Iterable[SourceImage],
    files: ImageFiles,
    problems: Problems,
    *,
    fractions: Fractions | None = None,
) -> tuple[list[SourceImage], str]:
    """Return the usable images of a data set with locations and splits, in the order of `listed`.

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
    found = _find(images, files, problems)
    for at, place in found.items():
        image = images[at]
        in_name = split_in_folders(to_posix(image.file_name))
        split = image.split or in_name or files.split_of(place) or ""
        images[at] = image._replace(location=place.location, split=split)
    places = [*found]
    groups = [
        [places[index] for index in group]
        for group in equal_images([place.location for place in found.values()])
    ]
    split_from = _assign(images, found, groups, fractions)
    selected: dict[int, SourceImage] = {}
    for at, image in enumerate(images):
        if at in found and not image.split:
            kind = "photos outside any split, left out"
            problems.note(kind, image.file_name, file=image.file_name, row=image.row())
            continue
        image = _with_words(image, problems)
        if at in found and image.captions:
            key = image.id if isinstance(image.id, int) else valid_text(image.id)
            selected[at] = image._replace(id=key, file_name=valid_text(image.file_name))
    _keep_copies_together(selected, groups, problems)
    return _merge(selected.values()), split_from


def _unique(listed: Iterable[SourceImage], problems: Problems) -> Iterator[SourceImage]:
    """Yield images with standard split names.

    An id that occurs again in the same split is noted and left out.
    """
    ids: set[tuple[str, int | str]] = set()
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


def _with_words(image: SourceImage, problems: Problems) -> SourceImage:
    """Return an image with clean captions; report captions without words."""
    captions = [clean_caption(caption) for caption in image.captions]
    worded = [at for at, caption in enumerate(captions) if any(map(str.isalnum, caption))]
    if not captions:
        problems.add("image without caption", image.file_name, row=image.row())
    for at in sorted({*range(len(captions))} - {*worded}):
        problems.add("empty caption", image.file_name, row=image.row(at))
    return image._replace(
        captions=tuple(captions[at] for at in worded),
        rows=tuple(image.row(at) for at in worded) or image.rows,
    )


def _find(images: Sequence[SourceImage], files: ImageFiles, problems: Problems) -> dict[int, Found]:
    """Find images by name, by position; report missing images and note other names."""
    found = {
        at: place
        for at, image in enumerate(images)
        if (
            place := Found(image.file_name, image.location)
            if image.location.path
            else files.find(image.file_name, image.split)
        )
    }
    names = {(to_nfc(images[at].file_name), place.location) for at, place in found.items()}
    claims = Counter(location for _, location in names)
    reported: set[tuple[str, str]] = set()
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
            problems.note("images found by another name", found_as, file=name, row=image.row())
    return found


def _is_moved(name: str, found: str) -> bool:
    """Whether a name has folders, and the image was found in another one."""
    folder, other = (casefold_path(to_posix(path)).rpartition("/")[0] for path in (name, found))
    return folder not in ("", other)


def _assign(
    images: list[SourceImage],
    found: Mapping[int, Found],
    groups: Sequence[Sequence[int]],
    fractions: Fractions | None,
) -> str:
    """Give splits to images, but not to those to leave out; return the origin of the splits."""
    has_splits, split_from = any(images[at].split for at in found), "as in the data"
    for group in groups:
        named = min({images[at].split for at in group} - {""}, key=keep_rank, default="")
        for at in group:
            if images[at].captions and not images[at].split:
                images[at] = images[at]._replace(split=named)
    if fractions or not has_splits:
        fractions = fractions or Fractions()
        pool = [group for group in groups if {images[at].split for at in group} <= {"", "train"}]
        for group in pool:
            split = fractions.draw(_content(found[group[0]]))
            for at in group:
                images[at] = images[at]._replace(split=split)
        is_rest = has_splits and len(pool) < len(groups)
        split_from = f"{'as in the data; rest ' * is_rest}drawn, {fractions}"
    return split_from


def _content(found: Found) -> bytes:
    """Return the bytes of a photo; if they cannot be read, which is reported later, its name."""
    try:
        return read_location(found.location)
    except OSError:
        return found.name.encode("utf-8", "surrogateescape")


def _keep_copies_together(
    selected: dict[int, SourceImage], groups: Sequence[Sequence[int]], problems: Problems
) -> None:
    """Leave out and note copies of a photo in all splits but one, the first by `keep_rank`."""
    for group in groups:
        copies = {at: selected[at] for at in group if at in selected}
        kept = min(copies.values(), key=lambda image: keep_rank(image.split), default=None)
        for at, image in copies.items():
            if kept and image.split != kept.split:
                del selected[at]
                example = f"{image.file_name} in {image.split} is {kept.file_name} in {kept.split}"
                kind = "copies in two splits, left out of one"
                problems.note(kind, example, file=image.file_name, row=image.row())


def _merge(images: Iterable[SourceImage]) -> list[SourceImage]:
    """Merge the captions of images that are the same file."""
    records: dict[object, SourceImage] = {}
    for image in images:
        # Images whose ids are not their file names are merged only if the ids are equal.
        place = image.location.path, image.location.offset, image.location.member
        key = (place if image.id == image.file_name else image.id), image.split
        if earlier := records.get(key):
            image = earlier._replace(captions=earlier.captions + image.captions)
        records[key] = image
    return list(records.values())
