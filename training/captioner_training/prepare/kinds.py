"""The kinds of data set that are the user's own: a row each, at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from captioner.errors import ConfigError, DataError
from captioner.paths import expanded
from captioner_training.prepare.caption_files import (
    Columns,
    TableReader,
    coco_images,
    csv_rows,
    jsonl_rows,
    parquet_rows,
    read_table,
)
from captioner_training.prepare.folders import read_flickr8k, read_folder
from captioner_training.prepare.listing import ListedImage, Problems, read_json
from captioner_training.prepare.originals import ImageFiles
from captioner_training.prepare.selection import Fractions, SourceData, select

__all__ = ["KINDS", "Kind", "Request", "read_source"]

_SAMPLE = 1000  # images whose captions show the script
_FLICKR8K_LICENCE = "Flickr8k: research use; the photos belong to their authors on Flickr"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be read."""

    paths: Sequence[str]  # of its folder or file; of coco-json several, [SPLIT=]FILE each
    images: Sequence[str] = ()  # places where the images are; none: the file's folder
    columns: Columns = field(default_factory=Columns)  # of a table


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a data set lists, before any image is looked for."""

    name: str
    images: list[ListedImage]
    places: Sequence[str | Path]  # where its images may be
    source: dict[str, Any]  # for the manifest
    from_others: bool = True  # its names may come from a stranger: links lead nowhere else
    missing_hint: str = "--images PLACE names other places"
    published: bool = False  # its splits stay as they are
    licence: str | None = None


Reader = Callable[[Request, Problems], Listing]


def read_source(kind: str, request: Request, *, fractions: Fractions | None = None) -> SourceData:
    """Read a data set of a kind, find its images and check everything.

    `fractions` are the shares of images without a split; None: not asked for.

    Raises:
        ConfigError: the columns are not there; shares of a data set that has splits.
        DataError: a file or the images cannot be read.

    """
    problems = Problems()
    listing = KINDS[kind].read(request, problems)
    name, listed = listing.name, listing.images
    if not listed and not problems:
        raise DataError(f"{name} lists no images")
    if fractions and listed and all(image.split for image in listed):
        raise ConfigError(f"{name} has splits of its own: --val and --test are for data without")
    chosen = fractions or Fractions()
    source = {"kind": kind, **listing.source}
    if any(image.split is None for image in listed):
        source |= {"val": chosen.val, "test": chosen.test}
    _note_script(listed, problems)
    files = ImageFiles(listing.places, links=not listing.from_others)
    found = select(listed, files, problems, fractions=chosen, published=listing.published)
    problems.explain("missing image", listing.missing_hint)
    return SourceData(
        name=name, images=found, problems=problems, source=source, licence=listing.licence
    )


def _note_script(listed: Sequence[ListedImage], problems: Problems) -> None:
    from captioner.vocabulary import has_no_spaces  # with torch, which `--help` does without

    if has_no_spaces(caption for image in listed[:_SAMPLE] for caption in image.captions):
        problems.note(
            "the captions are written without spaces between words: train with "
            "--data.tokenizer characters"
        )


def _of_folder(path: Path, name: str, images: list[ListedImage]) -> Listing:
    return Listing(
        name=name,
        images=images,
        places=[path],
        source={"path": str(path.resolve())},
        from_others=False,  # a folder's own links may lead anywhere
        missing_hint="where several copies lie in one folder, name the folder of one",
    )


def _folder(request: Request, problems: Problems) -> Listing:
    path = expanded(request.paths[0])
    return _of_folder(path, path.resolve().name, read_folder(path, problems))


def _flickr8k(request: Request, problems: Problems) -> Listing:
    path = expanded(request.paths[0])
    images, places = read_flickr8k(path, problems)
    return replace(
        _of_folder(path, "flickr8k", images),
        places=places,
        published=any(image.split for image in images),
        licence=_FLICKR8K_LICENCE,
    )


def _table(read: TableReader, request: Request, problems: Problems) -> Listing:
    path = expanded(request.paths[0])
    return Listing(
        name=path.stem,
        images=read_table(path, read, request.columns, problems),
        places=request.images or [path.parent],
        source={"path": str(path.resolve()), "images": list(request.images)},
    )


def _coco_json(request: Request, problems: Problems) -> Listing:
    listed: list[ListedImage] = []
    files: list[Path] = []
    for argument in request.paths:
        split, equals, name = argument.partition("=")
        path = expanded(name if equals else argument)
        named = split if equals and split else None
        listed += coco_images(read_json(path, problems), problems, name=str(path), split=named)
        files.append(path)
    return Listing(
        name=files[0].resolve().parent.name,
        images=listed,
        places=request.images or [files[0].parent],
        source={"files": list(request.paths), "images": list(request.images)},
    )


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of data set, and what `captioner prepare` says of it."""

    summary: str
    examples: tuple[str, ...]
    read: Reader
    metavar: str = "FILE"
    help: str | None = None  # of the path
    several: bool = False  # paths may be named
    suffixes: tuple[str, ...] = ()  # of such files, in small letters
    is_table: bool = False  # its columns may be named
    has_images: bool = True  # its images may lie elsewhere: --images


KINDS: Final = {
    "folder": Kind(
        summary="photos with captions beside them (photo.jpg, photo.txt)",
        examples=("folder photos --to ~/mine", "folder photos --to ~/mine --val 0.05 --test 0.05"),
        read=_folder,
        metavar="FOLDER",
        help="photos, each with a .txt or .caption file of one caption per line; subfolders "
        "train, val and test are splits",
        has_images=False,
    ),
    "csv": Kind(
        summary="a CSV table, one row per caption",
        examples=(
            "csv captions.csv --images photos --to ~/mine",
            "csv results.csv --image-column image_name --caption-column comment \\\n"
            "      --images photos.zip --to ~/mine",
        ),
        read=partial(_table, csv_rows),
        help="with a header or without",
        suffixes=(".csv", ".tsv"),
        is_table=True,
    ),
    "jsonl": Kind(
        summary="a file with one JSON object per line",
        examples=(
            "jsonl metadata.jsonl --image-column file_name --caption-column text --to ~/mine",
        ),
        read=partial(_table, jsonl_rows),
        suffixes=(".jsonl",),
        is_table=True,
    ),
    "parquet": Kind(
        summary="a Parquet table, one row per caption or image",
        examples=("parquet captions.parquet --images photos --to ~/mine",),
        read=partial(_table, parquet_rows),
        suffixes=(".parquet",),
        is_table=True,
    ),
    "coco-json": Kind(
        summary="captions in COCO's json format",
        examples=(
            "coco-json train=train.json val=val.json --images photos --to ~/mine",
            "coco-json captions.json --images 'photos-*.tar' --val 0.1 --to ~/mine",
        ),
        read=_coco_json,
        metavar="[SPLIT=]FILE",
        help="json files with images and annotations",
        suffixes=(".json",),
        several=True,
    ),
    "flickr8k": Kind(
        summary="Flickr8k as it is distributed",
        examples=("flickr8k downloads --to ~/flickr8k",),
        read=_flickr8k,
        metavar="FOLDER",
        help="with the images (unpacked or not), and dataset_flickr8k.json; or "
        "Flickr8k.token.txt and Flickr_8k.*Images.txt; or Kaggle's captions.txt",
        has_images=False,
    ),
}
"""The kinds by the names that `captioner prepare` takes."""
