"""The kinds of data set that `captioner prepare` reads, in the table KINDS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from captioner.errors import DataError
from captioner_training.prepare.files import ImageFiles
from captioner_training.prepare.folders import list_folder
from captioner_training.prepare.listing import (
    Listing,
    Problems,
    Request,
    common_folder,
    split_argument,
    valid_text,
)
from captioner_training.prepare.selection import SourceData, select
from captioner_training.prepare.splits import Fractions, absolute
from captioner_training.prepare.tables import list_tables


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of data set: its reader and its help."""

    read: Callable[[Request, Problems], Listing]
    summary: str
    example: str
    metavar: str = "FILE"
    help: str | None = None  # help of the path argument
    has_columns: bool = True  # accepts --image-column and so on
    has_images: bool = True  # accepts --images


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
    if not listing.images and not problems:
        raise DataError(f"{', '.join(map(str, request.paths))}: no photos found")
    files = ImageFiles(listing.places, links=not listing.has_table)
    images, split_from = select(listing.images, files, problems, fractions=fractions)
    paths = [split_argument(path)[1] for path in request.paths]
    origin = absolute(paths[0]) if len(paths) == 1 else common_folder(paths)
    source: dict[str, Any] = {"kind": kind, "path": valid_text(str(origin))}
    if len(paths) > 1:
        source = {"kind": kind, "files": [*map(valid_text, request.paths)]}
    if request.images:
        source["images"] = [*map(valid_text, request.images)]
    return SourceData(
        name=valid_text(origin.name if origin.is_dir() else origin.stem),
        images=images,
        problems=problems,
        source={**source, "splits": split_from},
    )


KINDS: Final = {
    "folder": Kind(
        read=list_folder,
        summary="photos with captions beside them (photo.jpg, photo.txt)",
        example="folder photos --to ~/mine --val 0.05 --test 0.05",
        metavar="FOLDER",
        help="folder with photos and a .txt or .caption file for each (one caption per line), with "
        "photos and a table of captions, with Parquet files or with WebDataset shards; or tar or "
        "zip files of photos",
        has_columns=False,
        has_images=False,
    ),
    "csv": Kind(
        read=list_tables,
        summary="a text table with one row per caption",
        example="csv captions.csv --images photos --to ~/mine",
        help="text tables with a header, and .token files",
    ),
    "xlsx": Kind(
        read=list_tables,
        summary="the first sheet of a workbook, one row per caption",
        example="xlsx captions.xlsx --images photos --to ~/mine",
    ),
    "jsonl": Kind(
        read=list_tables,
        summary="a file with one JSON object per line",
        example="jsonl metadata.jsonl --image-column file_name --caption-column text --to ~/mine",
    ),
    "parquet": Kind(
        read=list_tables,
        summary="Parquet tables, one row per caption or image, with the images inside or elsewhere",
        example="parquet data/train-*.parquet data/test-*.parquet --to ~/mine",
    ),
    "coco-json": Kind(
        read=list_tables,
        summary="captions in COCO's or Karpathy's json format",
        example="coco-json train=train.json val=val.json --images photos --to ~/mine",
        metavar="[SPLIT=]FILE",
        help="json files in COCO's or Karpathy's format",
        has_columns=False,
    ),
}
"""Kinds by name, as in `captioner prepare KIND`."""
