"""Each kind of data set, read and checked: what `captioner prepare KIND` begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError, DataError
from captioner.paths import expanded
from captioner.vocabulary import has_no_spaces
from captioner_training.prepare.coco_json import coco_images
from captioner_training.prepare.flickr8k import read_flickr8k
from captioner_training.prepare.gathering import gather
from captioner_training.prepare.images import ListedImage, SourceData
from captioner_training.prepare.places import ImageFiles
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.sidecars import read_folder
from captioner_training.prepare.splits import Fractions
from captioner_training.prepare.tables import Columns, read_csv, read_jsonl
from captioner_training.prepare.texts import read_json

__all__ = ["read_coco_json", "read_flickr8k_folder", "read_photo_folder", "read_table"]

_SAMPLE = 1000  # images whose captions tell the script


def read_photo_folder(folder: Path, *, fractions: Fractions | None) -> SourceData:
    """Photos with captions beside them. Raises DataError."""
    folder = expanded(folder)
    problems = Problems()
    listed = read_folder(folder, problems)
    source = {"kind": "folder", "path": str(folder.resolve())}
    return _gathered(folder.resolve().name, listed, [folder], problems, source, fractions)


def read_table(
    path: Path,
    *,
    kind: str,
    columns: Columns,
    delimiter: str | None,
    images: Sequence[str | Path],
    fractions: Fractions | None,
) -> SourceData:
    """A CSV or JSON-lines file. Raises DataError and ConfigError."""
    path = expanded(path)
    problems = Problems()
    if kind == "csv":
        listed = read_csv(path, columns, problems, delimiter=delimiter)
    else:
        listed = read_jsonl(path, columns, problems)
    source = {"kind": kind, "path": str(path.resolve()), "images": list(map(str, images))}
    return _gathered(path.stem, listed, images or [path.parent], problems, source, fractions)


def read_coco_json(
    files: Sequence[str], *, images: Sequence[str | Path], fractions: Fractions | None
) -> SourceData:
    """Files [SPLIT=]FILE in COCO's captions format. Raises DataError and ConfigError."""
    problems = Problems()
    listed: list[ListedImage] = []
    paths = []
    for argument in files:
        split, equals, name = argument.partition("=")
        if not equals:
            split, name = "", argument
        paths.append(expanded(name))
        content = read_json(paths[-1], problems)
        listed += coco_images(content, problems, name=str(paths[-1]), split=split or None)
    source = {"kind": "coco-json", "files": list(files), "images": list(map(str, images))}
    name = paths[0].resolve().parent.name
    return _gathered(name, listed, images or [paths[0].parent], problems, source, fractions)


def read_flickr8k_folder(folder: Path, *, fractions: Fractions | None) -> SourceData:
    """Flickr8k as it is distributed. Raises DataError."""
    folder = expanded(folder)
    problems = Problems()
    listed, places = read_flickr8k(folder, problems)
    source = {"kind": "flickr8k", "path": str(folder.resolve())}
    return replace(
        _gathered("flickr8k", listed, places, problems, source, fractions),
        licence="Flickr8k: research use; the photos belong to their authors on Flickr",
        published=any(image.split for image in listed),
    )


def _gathered(
    name: str,
    listed: Sequence[ListedImage],
    places: Sequence[str | Path],
    problems: Problems,
    source: dict[str, Any],
    fractions: Fractions | None,
) -> SourceData:
    """Find the images and check everything; `fractions` None: not asked for."""
    if not listed and not problems:
        raise DataError(f"{name} lists no images")
    if fractions and listed and all(image.split for image in listed):
        raise ConfigError(f"{name} has splits of its own: --val and --test are for data without")
    chosen = fractions or Fractions()
    if any(image.split is None for image in listed):
        source = {**source, "val": chosen.val, "test": chosen.test}
    if has_no_spaces(caption for image in listed[:_SAMPLE] for caption in image.captions):
        problems.note(
            "the captions are written without spaces between words: train with "
            "--data.tokenizer characters"
        )
    # A folder's own links may lead anywhere; a table's names may come from a stranger.
    files = ImageFiles(places, links="images" not in source)
    images = gather(listed, files, problems, fractions=chosen)
    problems.explain(
        "missing image",
        "--images PLACE names other places"
        if "images" in source
        else "where several copies lie in one folder, name the folder of one",
    )
    return SourceData(name=name, images=images, problems=problems, source=source)
