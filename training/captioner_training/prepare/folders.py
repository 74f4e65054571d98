"""Data sets that are a folder: photos with their captions beside them, and Flickr8k."""

from __future__ import annotations

import filecmp
from collections import Counter, defaultdict
from pathlib import Path

from captioner.errors import DataError
from captioner.vision.header import IMAGE_SUFFIXES
from captioner_training.prepare.caption_files import csv_rows, read_table
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.listing import ListedImage, Problems, read_json, read_text
from captioner_training.prepare.originals import composed, folded, walk
from captioner_training.prepare.selection import SPLIT_NAMES

__all__ = ["read_flickr8k", "read_folder"]

_SIDECARS = (".txt", ".caption")
_NO_CAPTIONS = ("readme", "license", "licence", "credits", "notice")  # texts about the data set
_LISTS = {
    "train": "flickr_8k.trainimages.txt",
    "val": "flickr_8k.devimages.txt",
    "test": "flickr_8k.testimages.txt",
}
_ABOUT = ("dataset_flickr8k.json", "flickr8k.token.txt", "captions.txt", *_LISTS.values())


def read_folder(folder: Path, problems: Problems) -> list[ListedImage]:
    """Read photos with their captions beside them: photo.jpg, photo.txt, one caption a line.

    Where all photos are in subfolders called train, val or test, these are the splits.

    Raises DataError: the folder cannot be read, or has no images.
    """
    files = list(walk(folder))
    images = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    sidecars = {path for path in files if path.suffix.lower() in _SIDECARS}
    kinds = Counter(
        path.suffix.lower() or "without a suffix"
        for path in files
        if path.suffix.lower() not in (*IMAGE_SUFFIXES, *_SIDECARS)
    )
    others = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    if not files:
        raise DataError(f"{folder} is empty")
    if not images:
        raise DataError(f"{folder} has no images that can be read: it has {others or 'only texts'}")
    problems.explain(
        "image without caption",
        "captions are expected beside each photo: photo.jpg has photo.txt or photo.caption; "
        "captions in one file are read by other kinds: `captioner prepare --help`",
    )
    if others:
        problems.note(f"files that were not taken: {others}")
    tops = {path.relative_to(folder).parts[0].lower() for path in images}
    beside = {image: _beside(image) for image in images}
    used = {path for paths in beside.values() for path in paths} & sidecars
    # What is called so but for capital letters, or in another form of ü, serves who has no other.
    spelled = {folded(str(path)): path for path in sorted(sidecars - used)}
    listed = []
    for image, paths in beside.items():
        texts = [path if path in sidecars else spelled.get(folded(str(path))) for path in paths]
        found = list(dict.fromkeys(filter(None, texts)))
        used.update(found)
        name = image.relative_to(folder).as_posix()
        captions = _captions(found, folder, problems)
        if captions is not None:
            split = name.split("/")[0] if tops <= SPLIT_NAMES else None
            listed.append(ListedImage(id=name, file_name=name, captions=captions, split=split))
    for sidecar in sorted(sidecars - used):
        if not sidecar.stem.lower().startswith(_NO_CAPTIONS):
            problems.add("caption of an unknown image", sidecar.relative_to(folder).as_posix())
    return listed


def _beside(image: Path) -> list[Path]:
    names = [image.with_suffix(suffix) for suffix in _SIDECARS]
    return names + [image.with_name(image.name + suffix) for suffix in _SIDECARS]


def _captions(texts: list[Path], folder: Path, problems: Problems) -> tuple[str, ...] | None:
    """Read the captions of an image; None: a file of them cannot be read, and is reported."""
    captions: list[str] = []
    readable = True
    for path in texts:
        try:
            text = read_text(path, problems, name=path.relative_to(folder).as_posix())
        except DataError as error:
            problems.add("unreadable captions", error.detail)
            readable = False
        else:
            # A text without any lines is an empty caption.
            captions += [line for line in text.splitlines() if line.strip()] or [""]
    return tuple(captions) if readable else None


def read_flickr8k(folder: Path, problems: Problems) -> tuple[list[ListedImage], list[Path]]:
    """Read Flickr8k as it is distributed, and say where its images are.

    The captions are those of dataset_flickr8k.json (Karpathy), Flickr8k.token.txt (the original)
    or captions.txt (Kaggle); the splits those of dataset_flickr8k.json, or of
    Flickr_8k.trainImages.txt, Flickr_8k.devImages.txt and Flickr_8k.testImages.txt.

    Raises DataError: the captions or the images are not there.
    """
    files = list(walk(folder))
    about = _about(folder, files)
    places = {path.parent for path in files if path.suffix.lower() in IMAGE_SUFFIXES}
    places |= {path for path in files if path.name.lower().endswith(("dataset.zip", ".tar"))}
    if not places:
        raise DataError(f"{folder} has no images: put the folder or zip file of Flickr8k's there")
    if karpathy := about.get("dataset_flickr8k.json"):
        return _karpathy(karpathy, problems), sorted(places)
    captions: dict[str, list[str]] = defaultdict(list)
    for name, caption in _pairs(folder, about, problems):
        captions[composed(name.split("#")[0])].append(caption)
    lists = {split: about[name] for split, name in _LISTS.items() if name in about}
    if not lists:
        problems.note("there is no Flickr_8k.trainImages.txt: splits are drawn by --val and --test")
        return [ListedImage(one, one, tuple(captions[one])) for one in captions], sorted(places)
    listed = [
        ListedImage(image, image, tuple(captions.get(image, ())), split)
        for split, path in lists.items()
        for image in map(str.strip, composed(read_text(path, problems)).splitlines())
        if image
    ]
    if left_out := len(captions.keys() - {one.file_name for one in listed}):
        problems.note(f"{left_out:,} images of no split were left out")
    return listed, sorted(places)


def _about(folder: Path, files: list[Path]) -> dict[str, Path]:
    """Find the files about the data set by lower-case name; DataError where two differ."""
    found: dict[str, Path] = {}
    for path in (path for path in files if path.name.lower() in _ABOUT):
        other = found.setdefault(path.name.lower(), path)
        if other != path and not filecmp.cmp(other, path, shallow=False):
            raise DataError(
                f"{folder} has more than one {path.name}, {other} and {path}, and they differ: "
                "name the folder of the one that is meant"
            )
    return found


def _karpathy(path: Path, problems: Problems) -> list[ListedImage]:
    try:
        return [
            ListedImage(
                id=image["filename"],
                file_name=image["filename"],
                captions=tuple(one["raw"] for one in image["sentences"]),
                split=image["split"],
            )
            for image in read_json(path, problems)["images"]
        ]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} is not in the format of Karpathy's splits: {error!r}") from error


def _pairs(folder: Path, about: dict[str, Path], problems: Problems) -> list[tuple[str, str]]:
    if token := about.get("flickr8k.token.txt"):
        lines = (line.partition("\t") for line in read_text(token, problems).splitlines())
        return [(name, caption) for name, _, caption in lines if name.strip()]
    if kaggle := about.get("captions.txt"):
        listed = read_table(kaggle, csv_rows, Columns(delimiter=","), problems)
        return [(image.file_name, caption) for image in listed for caption in image.captions]
    raise DataError(f"{folder} has none of dataset_flickr8k.json, Flickr8k.token.txt, captions.txt")
