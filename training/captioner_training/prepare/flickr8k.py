"""Flickr8k as it is distributed: by Karpathy, by its makers, on Kaggle."""

from __future__ import annotations

import filecmp
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner.readers import IMAGE_SUFFIXES
from captioner_training.prepare.csv_rows import csv_rows
from captioner_training.prepare.images import ListedImage
from captioner_training.prepare.names import composed
from captioner_training.prepare.places import walk
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.texts import read_json, read_text

__all__ = ["read_flickr8k"]

_ABOUT = ("dataset_flickr8k.json", "flickr8k.token.txt", "flickr_8k.", "captions.txt")


def read_flickr8k(folder: Path, problems: Problems) -> tuple[list[ListedImage], list[Path]]:
    """Read Flickr8k as it is distributed, and say where its images are.

    The captions are those of dataset_flickr8k.json (Karpathy), Flickr8k.token.txt (the original)
    or captions.txt (Kaggle); the splits those of dataset_flickr8k.json, or of
    Flickr_8k.trainImages.txt, Flickr_8k.devImages.txt and Flickr_8k.testImages.txt.

    Raises:
        DataError: the captions or the images are not there.

    """
    files = list(walk(folder))
    by_name = _by_name(folder, files)
    places = {path.parent for path in files if path.suffix.lower() in IMAGE_SUFFIXES}
    places |= {path for path in files if path.name.lower().endswith(("dataset.zip", ".tar"))}
    if not places:
        raise DataError(f"{folder} has no images: put the folder or zip file of Flickr8k's there")
    if karpathy := by_name.get("dataset_flickr8k.json"):
        listed = _karpathy(read_json(karpathy, problems), name=str(karpathy))
    else:
        captions = _captions(folder, by_name, problems)
        listed = list(_with_lists(captions, by_name, problems))
    return listed, sorted(places)


def _by_name(folder: Path, files: list[Path]) -> dict[str, Path]:
    """Find the files about the data set by their names, in lower case.

    Raises:
        DataError: two of them that differ have the same name.

    """
    found: dict[str, Path] = {}
    for path in files:
        name = path.name.lower()
        if not name.startswith(_ABOUT):
            continue
        if (other := found.setdefault(name, path)) != path and not filecmp.cmp(
            other, path, shallow=False
        ):
            raise DataError(
                f"{folder} has more than one {path.name}, {other} and {path}, and they differ: "
                "name the folder of the one that is meant"
            )
    return found


def _karpathy(content: Any, *, name: str) -> list[ListedImage]:
    try:
        return [
            ListedImage(
                id=image["filename"],
                file_name=image["filename"],
                captions=tuple(one["raw"] for one in image["sentences"]),
                split=image["split"],
            )
            for image in content["images"]
        ]
    except (KeyError, TypeError) as error:
        raise DataError(f"{name} is not in the format of Karpathy's splits: {error!r}") from error


def _captions(folder: Path, by_name: dict[str, Path], problems: Problems) -> dict[str, list[str]]:
    captions: dict[str, list[str]] = defaultdict(list)
    if token := by_name.get("flickr8k.token.txt"):
        lines = filter(str.strip, read_text(token, problems).splitlines())
        pairs = [line.partition("\t")[::2] for line in lines]
    elif kaggle := by_name.get("captions.txt"):
        rows = csv_rows(read_text(kaggle, problems), delimiter=",")
        pairs = [(row.cells[0], row.tail(1)) for row in rows][1:]  # the header first
    else:
        raise DataError(
            f"{folder} has none of dataset_flickr8k.json, Flickr8k.token.txt, captions.txt"
        )
    for name, caption in pairs:
        captions[composed(name.split("#")[0])].append(caption)
    return captions


def _with_lists(
    captions: dict[str, list[str]], by_name: dict[str, Path], problems: Problems
) -> Iterator[ListedImage]:
    lists = {
        split: path
        for split, name in (("train", "train"), ("val", "dev"), ("test", "test"))
        if (path := by_name.get(f"flickr_8k.{name}images.txt"))
    }
    if not lists:
        problems.note("there is no Flickr_8k.trainImages.txt: splits are drawn by --val and --test")
        for image, texts in captions.items():
            yield ListedImage(image, image, tuple(texts))
        return
    listed = 0
    for split, path in lists.items():
        names = map(str.strip, composed(read_text(path, problems)).splitlines())
        for image in filter(None, names):
            listed += image in captions
            yield ListedImage(image, image, tuple(captions.get(image, ())), split)
    if listed < len(captions):
        problems.note(f"{len(captions) - listed:,} images of no split were left out")
