"""Each kind of data set of the user's own, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from captioner.errors import ConfigError, DataError
from captioner.paths import expanded
from captioner.vocabulary import has_no_spaces
from captioner_training.prepare.coco_json import coco_images
from captioner_training.prepare.folders import read_flickr8k, read_folder
from captioner_training.prepare.gathering import SourceData, gather
from captioner_training.prepare.listing import ListedImage, Problems
from captioner_training.prepare.places import ImageFiles
from captioner_training.prepare.splits import Fractions
from captioner_training.prepare.tables import Columns, read_table
from captioner_training.prepare.texts import read_json

__all__ = ["read_source"]

_SAMPLE = 1000  # images whose captions show the script
_FLICKR8K_LICENCE = "Flickr8k: research use; the photos belong to their authors on Flickr"


def read_source(
    kind: str,
    paths: Sequence[str | Path],
    *,
    images: Sequence[str | Path] = (),
    columns: Columns | None = None,
    fractions: Fractions | None = None,
) -> SourceData:
    """Read a data set, find its images and check everything.

    Args:
        kind: "folder", "flickr8k", "coco-json", or a kind of table.
        paths: of its folder or file; of coco-json several, [SPLIT=]FILE each.
        images: places where the images of a file are; none: the file's folder.
        columns: of a table.
        fractions: the shares of images without a split; None: not asked for.

    Raises:
        ConfigError: the columns are not there; shares of a data set that has splits.
        DataError: a file or the images cannot be read.

    """
    problems = Problems()
    path = _split_and_path(paths[0])[1] if kind == "coco-json" else expanded(paths[0])
    source: dict[str, Any] = {"kind": kind, "path": str(path.resolve())}
    places: Sequence[str | Path] = images or [path.parent]
    name = path.stem
    if kind in ("folder", "flickr8k"):
        places = [path]
        if kind == "folder":
            name, listed = path.resolve().name, read_folder(path, problems)
        else:
            name = kind
            listed, places = read_flickr8k(path, problems)
    elif kind == "coco-json":
        source = {"kind": kind, "files": list(map(str, paths)), "images": list(map(str, images))}
        name = path.resolve().parent.name
        listed = [image for one in paths for image in _coco_json(one, problems)]
    else:
        source["images"] = list(map(str, images))
        listed = read_table(path, kind, columns or Columns(), problems)
    if not listed and not problems:
        raise DataError(f"{name} lists no images")
    if fractions and listed and all(image.split for image in listed):
        raise ConfigError(f"{name} has splits of its own: --val and --test are for data without")
    chosen = fractions or Fractions()
    if any(image.split is None for image in listed):
        source |= {"val": chosen.val, "test": chosen.test}
    if has_no_spaces(caption for image in listed[:_SAMPLE] for caption in image.captions):
        problems.note(
            "the captions are written without spaces between words: train with "
            "--data.tokenizer characters"
        )
    # A folder's own links may lead anywhere; a table's names may come from a stranger.
    files = ImageFiles(places, links="images" not in source)
    published = kind == "flickr8k" and any(image.split for image in listed)
    found = gather(listed, files, problems, fractions=chosen, published=published)
    problems.explain(
        "missing image",
        "--images PLACE names other places"
        if "images" in source
        else "where several copies lie in one folder, name the folder of one",
    )
    licence = _FLICKR8K_LICENCE if kind == "flickr8k" else None
    return SourceData(name=name, images=found, problems=problems, source=source, licence=licence)


def _split_and_path(argument: str | Path) -> tuple[str | None, Path]:
    """Take [SPLIT=]FILE apart."""
    split, equals, name = str(argument).partition("=")
    return (split or None, expanded(name)) if equals else (None, expanded(argument))


def _coco_json(argument: str | Path, problems: Problems) -> list[ListedImage]:
    split, path = _split_and_path(argument)
    return coco_images(read_json(path, problems), problems, name=str(path), split=split)
