"""Data sets that are a layout of files: photos with sidecars, COCO's json, Flickr8k."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from captioner.errors import DataError
from captioner_training.prepare.places import IMAGE_SUFFIXES, walk
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.samples import SPLIT_NAMES, Entry

__all__ = ["coco_entries", "karpathy_images", "read_flickr8k", "read_folder", "read_json"]

_SIDECARS = (".txt", ".caption")
_NO_CAPTIONS = ("readme", "license", "licence", "credits", "notice")  # texts about the data set


def read_folder(folder: Path, problems: Problems) -> list[Entry]:
    """Read photos with their captions beside them: photo.jpg, photo.txt, one caption a line.

    Where all photos are in subfolders called train, val or test, these are the splits.

    Raises:
        DataError: the folder cannot be read, or has no images.

    """
    files = list(walk(folder))
    images = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise DataError(f"{folder} has no images")
    sidecars = {path for path in files if path.suffix.lower() in _SIDECARS}
    tops = {path.relative_to(folder).parts[0].lower() for path in images}
    entries = []
    used = set()
    for path in images:
        beside = [path.with_suffix(suffix) for suffix in _SIDECARS]
        beside += [path.with_name(path.name + suffix) for suffix in _SIDECARS]
        texts = [sidecar for sidecar in beside if sidecar in sidecars]
        used.update(texts)
        name = path.relative_to(folder).as_posix()
        captions = tuple(caption for sidecar in texts for caption in _lines(sidecar))
        split = name.split("/")[0] if tops <= SPLIT_NAMES else None
        entries.append(Entry(id=name, file_name=name, captions=captions, split=split))
    for sidecar in sorted(sidecars - used):
        if not sidecar.stem.lower().startswith(_NO_CAPTIONS):
            problems.add("caption of an unknown image", sidecar.relative_to(folder).as_posix())
    return entries


def _lines(path: Path) -> list[str]:
    """Read the lines of a text that are not blank; a text without any is an empty caption."""
    return [line for line in read_text(path).splitlines() if line.strip()] or [""]


def read_text(path: Path) -> str:
    """Read a text file. Raises DataError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8: {error}") from error


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises DataError."""
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error


def coco_entries(
    content: Any, problems: Problems, *, name: str, split: str | None = None
) -> list[Entry]:
    """Read COCO's captions format. `split` counts before one that an image record names.

    Raises:
        DataError: the content is not in that format.

    """
    try:
        images, annotations = list(content["images"]), list(content["annotations"])
        licences = {one["id"]: one.get("name") for one in content.get("licenses", [])}
        ids = {image["id"] for image in images}
        if wrong := [key for key in ids if not isinstance(key, int | str)]:
            raise TypeError(f"an image's id is {wrong[0]!r}")
        captions: dict[int | str, list[str]] = defaultdict(list)
        for annotation in annotations:
            if annotation["image_id"] in ids:
                captions[annotation["image_id"]].append(str(annotation["caption"]))
            else:
                about = f"image {annotation['image_id']} in {name}"
                problems.add("caption of an unknown image", about)
        return [
            Entry(
                id=image["id"],
                file_name=str(image["file_name"]),
                captions=tuple(captions.get(image["id"], ())),
                split=split or image.get("split"),
                licence=licences.get(image.get("license")),
            )
            for image in images
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{name} is not in COCO's captions format: {error!r}") from error


def karpathy_images(content: Any, *, name: str) -> list[dict[str, Any]]:
    """Read the images of one of Karpathy's dataset_*.json files.

    Raises:
        DataError: the content is not in that format.

    """
    try:
        images = list(content["images"])
        for image in images:
            _ = image["filename"], image["split"], [one["raw"] for one in image["sentences"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{name} is not in the format of Karpathy's splits: {error!r}") from error
    return images


def read_flickr8k(folder: Path, notes: list[str]) -> tuple[list[Entry], list[Path]]:
    """Read Flickr8k as it is handed out, and say where its images are.

    The captions are those of dataset_flickr8k.json (Karpathy), Flickr8k.token.txt (the original)
    or captions.txt (Kaggle); the splits those of dataset_flickr8k.json, or of
    Flickr_8k.trainImages.txt, Flickr_8k.devImages.txt and Flickr_8k.testImages.txt.

    Raises:
        DataError: the captions or the images are not there.

    """
    files = list(walk(folder))
    by_name = {path.name.lower(): path for path in reversed(files)}
    places = {path.parent for path in files if path.suffix.lower() in IMAGE_SUFFIXES}
    places |= {path for path in files if path.name.lower().endswith(("dataset.zip", ".tar"))}
    if not places:
        raise DataError(f"{folder} has no images: put the folder or zip file of Flickr8k's there")
    if karpathy := by_name.get("dataset_flickr8k.json"):
        images = karpathy_images(read_json(karpathy), name=str(karpathy))
        entries = [_karpathy_entry(image) for image in images]
    else:
        captions = _flickr8k_captions(folder, by_name)
        entries = list(_with_lists(captions, by_name, notes))
    return entries, sorted(places)


def _karpathy_entry(image: dict[str, Any]) -> Entry:
    captions = tuple(one["raw"] for one in image["sentences"])
    return Entry(image["filename"], image["filename"], captions, image["split"])


def _flickr8k_captions(folder: Path, by_name: dict[str, Path]) -> dict[str, list[str]]:
    captions: dict[str, list[str]] = defaultdict(list)
    if token := by_name.get("flickr8k.token.txt"):
        rows: Iterable[Sequence[str]] = (
            line.split("\t", 1) for line in read_text(token).splitlines() if line.strip()
        )
    elif kaggle := by_name.get("captions.txt"):
        rows = list(csv.reader(read_text(kaggle).splitlines()))[1:]
    else:
        raise DataError(
            f"{folder} has none of dataset_flickr8k.json, Flickr8k.token.txt, captions.txt"
        )
    for row in rows:
        captions[row[0].split("#")[0]].append(row[1] if len(row) > 1 else "")
    return captions


def _with_lists(
    captions: dict[str, list[str]], by_name: dict[str, Path], notes: list[str]
) -> Iterator[Entry]:
    lists = {
        split: path
        for split, name in (("train", "train"), ("val", "dev"), ("test", "test"))
        if (path := by_name.get(f"flickr_8k.{name}images.txt"))
    }
    if not lists:
        notes.append("there is no Flickr_8k.trainImages.txt: splits are drawn by --val and --test")
        for image, texts in captions.items():
            yield Entry(image, image, tuple(texts))
        return
    listed = 0
    for split, path in lists.items():
        for image in filter(None, map(str.strip, read_text(path).splitlines())):
            listed += image in captions
            yield Entry(image, image, tuple(captions.get(image, ())), split)
    if listed < len(captions):
        notes.append(f"{len(captions) - listed:,} images of no split were left out")
