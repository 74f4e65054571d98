"""The kinds of data set that are the user's own: a row each, at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from captioner.errors import ConfigError, DataError
from captioner.paths import expanded
from captioner_training.prepare.caption_files import (
    TableReader,
    coco_images,
    csv_rows,
    jsonl_rows,
    parquet_rows,
    read_table,
    xlsx_rows,
)
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.folders import read_flickr8k, read_folder
from captioner_training.prepare.listing import (
    ListedImage,
    Problems,
    read_json,
)
from captioner_training.prepare.originals import ImageFiles, split_of
from captioner_training.prepare.selection import SPLIT_NAMES, Fractions, SourceData, select

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
    _note_language(listed, problems)
    files = ImageFiles(listing.places, links=not listing.from_others)
    found = select(listed, files, problems, fractions=chosen, published=listing.published)
    problems.explain("missing image", listing.missing_hint)
    _note_unused(files, listing, problems)
    return SourceData(
        name=name, images=found, problems=problems, source=source, licence=listing.licence
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
            f"train own-language` learns them from nothing{characters}"
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


def _note_unused(files: ImageFiles, listing: Listing, problems: Problems) -> None:
    for name in files.unused() if listing.from_others else ():
        problems.note(
            "photos without a row", name, file=name, remedy="write a row for it, or leave it out"
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
    name = path.resolve().name
    # Hugging Face's imagefolder has tables beside its photos, in the folders of its splits.
    readers = {suffix: kind.rows for kind in KINDS.values() for suffix in kind.suffixes}
    found = sorted(one for way in ("", "*/") for one in path.glob(f"{way}metadata.*"))
    tables = [(one, rows) for one in found if (rows := readers.get(one.suffix))]
    if tables:
        images = [one for table in tables for one in _metadata(*table, path, problems)]
        return replace(_of_folder(path, name, images), from_others=True)
    return _of_folder(path, name, read_folder(path, problems))


def _metadata(
    table: Path, rows: TableReader, folder: Path, problems: Problems
) -> list[ListedImage]:
    below = table.parent.relative_to(folder)
    split = below.name if below.name in SPLIT_NAMES else None
    try:
        listed = read_table(table, rows, Columns(), problems)
    except ConfigError as error:
        raise ConfigError(
            f"{error}: options of the table's own kind, see `captioner prepare --help`; where the "
            "captions lie beside the photos, rename the table"
        ) from error
    return [
        one._replace(id=name, file_name=name, split=one.split or split)
        for one in listed
        for name in [(below / one.file_name).as_posix()]
    ]


def _flickr8k(request: Request, problems: Problems) -> Listing:
    path = expanded(request.paths[0])
    images, places = read_flickr8k(path, problems)
    return replace(
        _of_folder(path, "flickr8k", images),
        places=places,
        published=any(image.split for image in images),
        licence=_FLICKR8K_LICENCE,
    )


def _table(rows: TableReader, request: Request, problems: Problems) -> Listing:
    """Read the tables of one data set, of which each may be a split."""
    paths = [expanded(path) for path in request.paths]
    beside = list(dict.fromkeys(path.parent for path in paths))
    places: Sequence[str | Path] = request.images or beside
    files = cache(lambda: ImageFiles(places))  # not before somebody asks
    columns = replace(request.columns, is_photo=lambda name: files().has(name))
    images = [
        image if image.split else image._replace(split=split_of(path))
        for path in paths
        for image in read_table(path, rows, columns, problems)
    ]
    if images and all(image.location for image in images):
        places = []
    return Listing(
        name=paths[0].stem if len(paths) == 1 else paths[0].resolve().parent.name,
        images=images,
        places=places,
        source={"path": str(paths[0].resolve()), "images": list(request.images)}
        if len(paths) == 1
        else {"files": list(request.paths), "images": list(request.images)},
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
    rows: TableReader | None = None  # of a table, whose columns may be named
    has_images: bool = True  # its images may lie elsewhere: --images


KINDS: Final = {
    "folder": Kind(
        summary="photos with captions beside them (photo.jpg, photo.txt)",
        examples=("folder photos --to ~/mine", "folder photos --to ~/mine --val 0.05 --test 0.05"),
        read=_folder,
        metavar="FOLDER",
        help="photos, each with a .txt or .caption file of one caption per line, or with a "
        "metadata.csv; subfolders train, val and test are splits",
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
        rows=csv_rows,
        help="with a header or without",
        suffixes=(".csv", ".tsv"),
    ),
    "xlsx": Kind(
        summary="the first sheet of a workbook, as CSV",
        examples=("xlsx captions.xlsx --images photos --to ~/mine",),
        read=partial(_table, xlsx_rows),
        rows=xlsx_rows,
        suffixes=(".xlsx", ".xlsm", ".xls", ".ods"),
    ),
    "jsonl": Kind(
        summary="a file with one JSON object per line",
        examples=(
            "jsonl metadata.jsonl --image-column file_name --caption-column text --to ~/mine",
        ),
        read=partial(_table, jsonl_rows),
        rows=jsonl_rows,
        suffixes=(".jsonl",),
    ),
    "parquet": Kind(
        summary="Parquet tables, one row per caption or image, with the images inside or elsewhere",
        examples=(
            "parquet captions.parquet --images photos --to ~/mine",
            "parquet data/train-*.parquet data/test-*.parquet --to ~/mine",
        ),
        several=True,
        read=partial(_table, parquet_rows),
        rows=parquet_rows,
        suffixes=(".parquet",),
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
