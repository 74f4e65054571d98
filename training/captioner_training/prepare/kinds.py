"""Read the kinds of data set that `captioner prepare` takes; each is a row of KINDS."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from captioner.errors import ConfigError, DataError
from captioner.paths import expanded
from captioner.tables import WORKBOOKS
from captioner_training.prepare.caption_files import read_caption_file
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.folders import read_flickr8k, read_folder
from captioner_training.prepare.listing import (
    ListedImage,
    Problems,
)
from captioner_training.prepare.originals import ImageFiles, walk
from captioner_training.prepare.selection import SourceData, select
from captioner_training.prepare.splits import Fractions, splits_of_files
from captioner_training.prepare.webdataset import read_shards

if TYPE_CHECKING:
    from captioner.vocabulary import Tokenizer

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
    licence: str | None = None


Reader = Callable[[Request, Problems], Listing]


def read_source(kind: str, request: Request, *, fractions: Fractions | None = None) -> SourceData:
    """Read a data set of a kind, find its images and check everything.

    `fractions` are the shares of images without a split; None: not given.

    Raises:
        ConfigError: the columns are missing; shares of a data set that has splits.
        DataError: a file or the images cannot be read.
    """
    problems = Problems()
    listing = KINDS[kind].read(request, problems)
    name, listed = listing.name, listing.images
    if not listed and not problems:
        raise DataError(f"{', '.join(map(str, request.paths))} lists no photos")
    _note_language(listed, problems)
    files = ImageFiles(listing.places, links=not listing.from_others)
    selection = select(listed, files, problems, fractions=fractions)
    problems.explain("missing image", listing.missing_hint)
    if listing.from_others:
        for photo in files.unused():
            problems.note_unlisted(photo)
    return SourceData(
        name=name,
        images=selection.images,
        problems=problems,
        source={"kind": kind, **listing.source, "splits": selection.split_from},
        licence=listing.licence,
    )


def _note_language(listed: Sequence[ListedImage], problems: Problems) -> None:
    """Say what of the captions a model has to be told, or will not read."""
    from captioner.checkpoint import read_header  # with torch, which `--help` does without
    from captioner.paths import bundled_checkpoint
    from captioner.vocabulary import has_no_spaces, tokenize
    from captioner_training.data.corpus import OTHER_LANGUAGE, unknown_share
    from captioner_training.recipe import DataConfig

    some = [caption for image in listed[:_SAMPLE] for caption in image.captions]
    unspaced = has_no_spaces(some)
    tokenizer: Tokenizer = "characters" if unspaced else "words"
    known = {*read_header(bundled_checkpoint())["vocabulary"]}
    share = unknown_share((tokenize(caption, tokenizer) for caption in some), known)
    if share > OTHER_LANGUAGE:
        characters = " --data.tokenizer characters" * unspaced
        problems.note(
            f"{100 * share:.0f} % of the words are none that the bundled model knows: `captioner "
            f"train new-language` learns them from nothing{characters}"
        )
    most = DataConfig.maximum_length
    for image in listed:
        for at, caption in enumerate(image.captions):
            short = not unspaced and caption.count(" ") < most
            if not short and (words := len(tokenize(caption, tokenizer))) > most:
                problems.note(
                    f"captions longer than {most} words", f"{image.file_name} has {words}",
                    file=image.file_name, row=image.row(at),
                    remedy="training reads the beginning: shorten it, or set --data.maximum_length",
                )  # fmt: skip


def _folder(request: Request, problems: Problems) -> Listing:
    paths = [expanded(path) for path in request.paths]
    if all(path.suffix.lower() == ".tar" for path in paths):
        images, from_others = read_shards(paths, problems), True
    elif len(paths) == 1:
        images, from_others = read_folder(paths[0], problems)
    else:
        raise ConfigError("name one folder, or tar files")
    return Listing(
        name=(paths[0] if len(paths) == 1 else _top(paths)).resolve().name.removesuffix(".tar"),
        images=images,
        places=[] if _all_inside(images) else paths,
        source={"path": str(paths[0].resolve())}
        if len(paths) == 1
        else {"files": list(request.paths)},
        from_others=from_others,  # a folder's own links may lead anywhere
        missing_hint="where several copies lie in one folder, name the folder of one",
    )


def _all_inside(images: Sequence[ListedImage]) -> bool:
    """Whether the files of captions contain the photos."""
    return bool(images) and all(image.location for image in images)


def _flickr8k(request: Request, problems: Problems) -> Listing:
    path = expanded(request.paths[0])
    images, places = read_flickr8k(path, problems)
    return Listing(
        name="flickr8k",
        images=images,
        places=places,
        source={"path": str(path.resolve())},
        from_others=False,
        missing_hint="where several copies lie in one folder, name the folder of one",
        licence=_FLICKR8K_LICENCE,
    )


def _caption_files(request: Request, problems: Problems) -> Listing:
    """Read the files of one data set; each may be a split."""
    arguments = [
        (split, path)
        for split, named in map(_split_argument, request.paths)
        for path in (_files_in(named) if named.is_dir() else [named])
    ]
    paths = [path for _, path in arguments]
    places: Sequence[str | Path] = request.images or list({path.parent: None for path in paths})
    files = cache(lambda: ImageFiles(places))  # only when a name is looked up
    columns = replace(request.columns, is_photo=lambda name: files().has(name))
    images: list[ListedImage] = []
    for (given, path), named in zip(arguments, splits_of_files(paths), strict=True):
        split = (given, "the command line") if given else named
        for image in read_caption_file(path, columns, problems, prefix=_prefix(path, paths)):
            if split and (given or not image.split):
                image = image._replace(split=split[0], split_from=split[1])
            images.append(image)
    of_file = {"path": str(paths[0].resolve())} if len(paths) == 1 else {"files": [*request.paths]}
    return Listing(
        name=paths[0].stem if len(paths) == 1 else _top(paths).name,
        images=images,
        places=[] if _all_inside(images) else places,
        source={**of_file, "images": list(request.images)},
    )


def _files_in(folder: Path) -> list[Path]:
    """Return the Parquet files in a folder, as Hugging Face stores splits. Raises DataError."""
    if paths := [path for path in walk(folder) if path.suffix.lower() == ".parquet"]:
        return paths
    raise DataError(f"{folder} is a folder: name the file in it, or use `prepare folder`")


def _split_argument(argument: str) -> tuple[str | None, Path]:
    """Read [SPLIT=]FILE; a file whose name has an equals sign is itself."""
    split, equals, name = argument.partition("=")
    if equals and split and "/" not in split and not expanded(argument).exists():
        return split, expanded(name)
    return None, expanded(argument)


def _top(paths: Sequence[Path]) -> Path:
    """Return the folder that all files share."""
    return Path(os.path.commonpath([path.resolve().parent for path in paths]))


def _prefix(path: Path, paths: Sequence[Path]) -> str:
    """Name a file by its folders below the folder that all files share, and its stem."""
    return path.resolve().relative_to(_top(paths)).with_suffix("").as_posix()


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
    has_columns: bool = False  # a table, whose columns may be named
    has_images: bool = True  # its images may lie elsewhere: --images


KINDS: Final = {
    "folder": Kind(
        summary="photos with captions beside them (photo.jpg, photo.txt)",
        examples=("folder photos --to ~/mine", "folder photos --to ~/mine --val 0.05 --test 0.05"),
        read=_folder,
        metavar="FOLDER",
        several=True,
        help="photos, each with a .txt or .caption file of one caption per line, or with a table "
        "of captions; or Parquet files; or WebDataset shards, which may be named themselves",
        has_images=False,
    ),
    "csv": Kind(
        summary="a table as text, one row per caption",
        examples=(
            "csv captions.csv --images photos --to ~/mine",
            "csv results.csv --image-column image_name --caption-column comment \\\n"
            "      --images photos.zip --to ~/mine",
        ),
        suffixes=(".csv", ".tsv", ".token"),
        several=True,
        read=_caption_files,
        has_columns=True,
        help="with a header or without",
    ),
    "xlsx": Kind(
        summary="the first sheet of a workbook, as CSV",
        examples=("xlsx captions.xlsx --images photos --to ~/mine",),
        suffixes=WORKBOOKS,
        several=True,
        read=_caption_files,
        has_columns=True,
    ),
    "jsonl": Kind(
        summary="a file with one JSON object per line",
        examples=(
            "jsonl metadata.jsonl --image-column file_name --caption-column text --to ~/mine",
        ),
        suffixes=(".jsonl", ".ndjson"),
        several=True,
        read=_caption_files,
        has_columns=True,
    ),
    "parquet": Kind(
        summary="Parquet tables, one row per caption or image, with the images inside or elsewhere",
        examples=(
            "parquet captions.parquet --images photos --to ~/mine",
            "parquet data/train-*.parquet data/test-*.parquet --to ~/mine",
        ),
        several=True,
        suffixes=(".parquet",),
        read=_caption_files,
        has_columns=True,
    ),
    "coco-json": Kind(
        summary="captions in COCO's or Karpathy's json format",
        examples=(
            "coco-json train=train.json val=val.json --images photos --to ~/mine",
            "coco-json dataset_flickr30k.json --images flickr30k-images --to ~/mine",
            "coco-json captions.json --images 'photos-*.tar' --val 0.1 --to ~/mine",
        ),
        suffixes=(".json",),
        several=True,
        read=_caption_files,
        metavar="[SPLIT=]FILE",
        help="json files in COCO's or Karpathy's format",
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
