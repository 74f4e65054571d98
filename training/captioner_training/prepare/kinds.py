"""The kinds of data set that `captioner prepare` reads, in the table KINDS."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from captioner.errors import ConfigError, DataError
from captioner.shared.paths import expanded
from captioner_training.prepare.caption_files import read_caption_file
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.folders import read_folder
from captioner_training.prepare.listing import ListedImage, Problems, valid_text
from captioner_training.prepare.originals import ImageFiles, walk
from captioner_training.prepare.selection import SourceData, select
from captioner_training.prepare.splits import Fractions, split_of_file
from captioner_training.prepare.webdataset import read_shards

if TYPE_CHECKING:
    from captioner.vocabulary import Tokenizer

_SAMPLE = 1000  # images whose captions decide the language
_COPIES_HINT = "if a folder has several copies of the data set, name the folder of one copy"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `captioner prepare KIND`."""

    paths: Sequence[str]  # a folder, or files, each as [SPLIT=]FILE
    images: Sequence[str] = ()  # places of the images; empty: the folders of the files
    columns: Columns = field(default_factory=Columns)  # columns of a table


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images and captions that a data set lists, before the image files are searched."""

    name: str
    images: list[ListedImage]
    places: Sequence[str | Path]  # where to search the image files
    source: dict[str, Any]  # kind and options, for the manifest
    has_table: bool = True  # a table names the images, so links must not lead out of the places
    missing_hint: str = "add places with --images"


Reader = Callable[[Request, Problems], Listing]


def read_source(kind: str, request: Request, *, fractions: Fractions | None = None) -> SourceData:
    """Read a data set, find its images and check everything.

    Args:
        kind: a name in KINDS.
        request: the files to read.
        fractions: the shares of val and test to draw; None: see select.

    Raises:
        ConfigError: columns are missing.
        DataError: a file or the images cannot be read.
    """
    problems = Problems()
    listing = KINDS[kind].read(request, problems)
    name, listed = listing.name, listing.images
    if not listed and not problems:
        raise DataError(f"{', '.join(map(str, request.paths))}: no photos found")
    _note_language(listed, problems)
    files = ImageFiles(listing.places, links=not listing.has_table)
    selection = select(listed, files, problems, fractions=fractions)
    problems.explain("missing image", listing.missing_hint)
    if listing.has_table:
        for photo in files.unused():
            problems.note_unlisted(photo)
    return SourceData(
        name=valid_text(name),
        images=selection.images,
        problems=problems,
        source={"kind": kind, **listing.source, "splits": selection.split_from},
    )


def _note_language(listed: Sequence[ListedImage], problems: Problems) -> None:
    """Note captions that are long, or in another language than the bundled model's."""
    from captioner.checkpoint import read_header  # imports torch, which would make --help slow
    from captioner.shared.paths import bundled_checkpoint
    from captioner.vocabulary import has_no_spaces, tokenize
    from captioner_training.data.corpus import OTHER_LANGUAGE, unknown_share
    from captioner_training.recipe import DataConfig

    sample = [caption for image in listed[:_SAMPLE] for caption in image.captions]
    unspaced = has_no_spaces(sample)
    tokenizer: Tokenizer = "characters" if unspaced else "words"
    vocabulary = {*read_header(bundled_checkpoint())["vocabulary"]}
    share = unknown_share((tokenize(caption, tokenizer) for caption in sample), vocabulary)
    if share > OTHER_LANGUAGE:
        option = " --data.tokenizer characters" if unspaced else ""
        problems.note(
            f"the bundled model does not know {100 * share:.0f} % of the words; train with "
            f"`captioner train new-language{option}`"
        )
    most = DataConfig.maximum_length
    for image in listed:
        for at, caption in enumerate(image.captions):
            short = not unspaced and caption.count(" ") < most
            if not short and (words := len(tokenize(caption, tokenizer))) > most:
                problems.note(
                    f"captions longer than {most} words", f"{image.file_name} has {words}",
                    file=image.file_name, row=image.row(at),
                )  # fmt: skip


def _folder(request: Request, problems: Problems) -> Listing:
    paths = [expanded(path) for path in request.paths]
    are_archives = all(path.suffix.lower() in (".tar", ".zip") for path in paths)
    if are_archives:
        images, has_table = read_shards(paths, _top(paths), problems), True
    elif len(paths) == 1:
        images, has_table = read_folder(paths[0], problems)
    else:
        raise ConfigError("name either one folder, or tar or zip files")
    origin = (paths[0] if len(paths) == 1 else _top(paths)).resolve()
    return Listing(
        name=origin.stem if are_archives and len(paths) == 1 else origin.name,
        images=images,
        places=[] if _are_embedded(images) else paths,
        source=_source(request, paths),
        has_table=has_table,
        missing_hint=_COPIES_HINT,
    )


def _source(request: Request, paths: Sequence[Path]) -> dict[str, Any]:
    if len(paths) == 1:
        return {"path": valid_text(str(paths[0].resolve()))}
    return {"files": [*map(valid_text, request.paths)]}


def _are_embedded(images: Sequence[ListedImage]) -> bool:
    return bool(images) and all(image.location for image in images)


def _caption_files(request: Request, problems: Problems) -> Listing:
    """Read the files of a data set, which may be one per split."""
    arguments = [
        (split, path)
        for split, named in map(_split_argument, request.paths)
        for path in (_files_in(named) if named.is_dir() else [named])
    ]
    paths = [path for _, path in arguments]
    places: Sequence[str | Path] = request.images or list({path.parent: None for path in paths})
    images: list[ListedImage] = []
    for given, path in arguments:
        named = split_of_file(path, _top(paths))
        split = (given, "the command line") if given else named
        for image in read_caption_file(
            path, request.columns, problems, prefix=_prefix(path, paths)
        ):
            if split and (given or not image.split):
                image = image._replace(split=split[0], split_from=split[1])
            images.append(image)
    return Listing(
        name=paths[0].stem if len(paths) == 1 else _top(paths).name,
        images=images,
        places=[] if _are_embedded(images) else places,
        source={**_source(request, paths), "images": [*map(valid_text, request.images)]},
    )


def _files_in(folder: Path) -> list[Path]:
    """Return the Parquet files in a folder downloaded from Hugging Face. Raises DataError."""
    if paths := [path for path in walk(folder) if path.suffix.lower() == ".parquet"]:
        return paths
    raise DataError(f"{folder} is a folder: name a file in it, or use `prepare folder`")


def _split_argument(argument: str) -> tuple[str | None, Path]:
    """Parse [SPLIT=]FILE. File names may contain an equals sign."""
    split, equals, name = argument.partition("=")
    if equals and split and "/" not in split and not expanded(argument).exists():
        return split, expanded(name)
    return None, expanded(argument)


def _top(paths: Sequence[Path]) -> Path:
    return Path(os.path.commonpath([path.parent.resolve() for path in paths]))


def _prefix(path: Path, paths: Sequence[Path]) -> str:
    """Return a file's path relative to the common folder of all files, without its suffix."""
    return (path.parent.resolve() / path.name).relative_to(_top(paths)).with_suffix("").as_posix()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of data set and its help."""

    summary: str
    examples: tuple[str, ...]
    read: Reader
    metavar: str = "FILE"
    help: str | None = None  # help of the path argument
    several: bool = False  # accepts several paths
    has_columns: bool = False  # accepts --image-column and so on
    has_images: bool = True  # accepts --images


KINDS: Final = {
    "folder": Kind(
        summary="photos with captions beside them (photo.jpg, photo.txt)",
        examples=("folder photos --to ~/mine", "folder photos --to ~/mine --val 0.05 --test 0.05"),
        read=_folder,
        metavar="FOLDER",
        several=True,
        help="folder with photos and a .txt or .caption file for each (one caption per line), with "
        "photos and a table of captions, with Parquet files or with WebDataset shards; or tar or "
        "zip files of photos",
        has_images=False,
    ),
    "csv": Kind(
        summary="a text table with one row per caption",
        examples=(
            "csv captions.csv --images photos --to ~/mine",
            "csv results.csv --image-column image_name --caption-column comment \\\n"
            "      --images photos.zip --to ~/mine",
        ),
        several=True,
        read=_caption_files,
        has_columns=True,
        help="text tables with a header, and .token files",
    ),
    "xlsx": Kind(
        summary="the first sheet of a workbook, one row per caption",
        examples=("xlsx captions.xlsx --images photos --to ~/mine",),
        several=True,
        read=_caption_files,
        has_columns=True,
    ),
    "jsonl": Kind(
        summary="a file with one JSON object per line",
        examples=(
            "jsonl metadata.jsonl --image-column file_name --caption-column text --to ~/mine",
        ),
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
        several=True,
        read=_caption_files,
        metavar="[SPLIT=]FILE",
        help="json files in COCO's or Karpathy's format",
    ),
}
"""Kinds by name, as in `captioner prepare KIND`."""
