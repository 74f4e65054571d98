"""`captioner prepare KIND`: a data set of any origin as a compact one to train on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from captioner.paths import expanded

if TYPE_CHECKING:
    from captioner_training.prepare.images import SourceData
    from captioner_training.prepare.manifest import Manifest
    from captioner_training.prepare.target import Options

HELP = "Prepare a data set to train on: images resized once, in tar shards, with a manifest."
EXAMPLES = """examples:
  captioner prepare coco --to ~/coco
  captioner prepare folder photos --to ~/mine
  captioner prepare csv captions.csv --images photos --to ~/mine
  captioner prepare coco-json train=train.json val=val.json --images photos --to ~/mine
  captioner train coco-fast --data.root ~/coco

'captioner prepare KIND --help' has the options of a kind. Problems in the data are reported all
together, and nothing is prepared from it; --skip-bad goes on without them. The same command
finishes a run that was interrupted. The folder's path is printed on standard output."""


class _Kind(NamedTuple):
    """A kind of data set, as the command line has it."""

    name: str
    summary: str
    examples: tuple[str, ...]
    add: Callable[[argparse.ArgumentParser], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the kinds and their options."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind in _KINDS:
        one = kinds.add_parser(
            kind.name,
            help=kind.summary,
            description=f"Prepare {kind.summary}.",
            epilog="examples:\n" + "\n".join(f"  captioner prepare {e}" for e in kind.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        kind.add(one)
        _add_common(one)


def _add_coco(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--year", type=int, choices=(2014, 2017), default=2014, help="or 2017")
    parser.add_argument(
        "--split",
        choices=("karpathy", "official"),
        default="karpathy",
        help="karpathy (default): 113,287, 5,000 and 5,000 images, as in most papers; official: "
        "COCO's own train and val",
    )
    parser.add_argument("--mirror", metavar="URL", help="a folder on the web with the same files")
    parser.add_argument(
        "--keep-downloads", action="store_true", help="do not delete the zip files at the end"
    )


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        metavar="FOLDER",
        help="photos, each with a .txt or .caption file of one caption per line; subfolders train, "
        "val and test are splits",
    )
    _add_fractions(parser)


def _add_csv(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="FILE", help="with a header or without")
    parser.add_argument("--delimiter", metavar="CHAR", help="default: found by the first row")
    _add_columns(parser)


def _add_jsonl(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="FILE")
    _add_columns(parser)


def _add_columns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image-column", metavar="NAME", help="the image's file name")
    parser.add_argument(
        "--caption-column",
        metavar="NAME",
        action="append",
        default=[],
        help="a caption or a list of them; may be given several times",
    )
    parser.add_argument("--split-column", metavar="NAME", help="default: split, if there is one")
    _add_images(parser)
    _add_fractions(parser)


def _add_coco_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="[SPLIT=]FILE", help="json files with images and annotations"
    )
    _add_images(parser)
    _add_fractions(parser)


def _add_flickr8k(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        metavar="FOLDER",
        help="with the images (unpacked or not), and dataset_flickr8k.json; or Flickr8k.token.txt "
        "and Flickr_8k.*Images.txt; or Kaggle's captions.txt",
    )
    _add_fractions(parser)


def _add_images(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--images",
        nargs="+",
        default=[],
        metavar="PLACE",
        help="folders, tar or zip files, or globs of them; default: the folder of FILE",
    )


def _add_fractions(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("splits, for images that the data set puts into none")
    group.add_argument("--val", type=float, metavar="FRACTION", help="share for val; default: 0.1")
    group.add_argument("--test", type=float, metavar="FRACTION", help="share for test; default: 0")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="where it is put")
    parser.add_argument("--name", help="of the data set; default: by its origin")
    parser.add_argument("--licence", metavar="TEXT", help="of the data set, for the manifest")
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out what has problems instead of stopping"
    )
    parser.add_argument("--force", action="store_true", help="replace another data set in DIR")
    parser.add_argument(
        "--size", type=int, default=256, metavar="N", help="pixels of the short side; default: 256"
    )
    parser.add_argument(
        "--quality", type=int, default=90, metavar="N", help="of JPEG, 1 to 100; default: 90"
    )
    parser.add_argument(
        "--shard-images", type=int, default=2000, metavar="N", help="images per tar; default: 2000"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes; default: one per core")


_KINDS = (
    _Kind(
        "coco",
        "COCO captions, downloaded",
        ("coco --to ~/coco", "coco --to ~/coco --year 2017 --split official"),
        _add_coco,
    ),
    _Kind(
        "folder",
        "photos with captions beside them (photo.jpg, photo.txt)",
        ("folder photos --to ~/mine", "folder photos --to ~/mine --val 0.05 --test 0.05"),
        _add_folder,
    ),
    _Kind(
        "csv",
        "a CSV table, one row per caption",
        (
            "csv captions.csv --images photos --to ~/mine",
            "csv results.csv --image-column image_name --caption-column comment \\\n"
            "      --images photos.zip --to ~/mine",
        ),
        _add_csv,
    ),
    _Kind(
        "jsonl",
        "a file with one JSON object per line",
        ("jsonl metadata.jsonl --image-column file_name --caption-column text --to ~/mine",),
        _add_jsonl,
    ),
    _Kind(
        "coco-json",
        "captions in COCO's json format",
        (
            "coco-json train=train.json val=val.json --images photos --to ~/mine",
            "coco-json captions.json --images 'photos-*.tar' --val 0.1 --to ~/mine",
        ),
        _add_coco_json,
    ),
    _Kind(
        "flickr8k",
        "Flickr8k as it is distributed",
        ("flickr8k downloads --to ~/flickr8k",),
        _add_flickr8k,
    ),
)


def run(arguments: argparse.Namespace) -> int:
    """Prepare the data set; print its folder."""
    from captioner.cores import cores
    from captioner_training.prepare.manifest import ImageFormat
    from captioner_training.prepare.target import Options

    options = Options(
        to=expanded(arguments.to),
        image=ImageFormat(short_side=arguments.size, quality=arguments.quality),
        shard_images=arguments.shard_images,
        workers=cores() if arguments.workers is None else arguments.workers,
        skip_bad=arguments.skip_bad,
        force=arguments.force,
    )
    prepare = _prepare_coco if arguments.kind == "coco" else _prepare
    manifest = prepare(arguments, options)
    _summarize(manifest)
    print(options.to)
    return 0


def _prepare(arguments: argparse.Namespace, options: Options) -> Manifest:
    from dataclasses import replace

    from captioner_training.prepare.assemble import assemble
    from captioner_training.prepare.target import claimed, clear

    data = _read(arguments)
    data = replace(
        data, name=arguments.name or data.name, licence=arguments.licence or data.licence
    )
    with claimed(options.to) as work:
        manifest = assemble(data, options, work)
        clear(work)
    return manifest


def _prepare_coco(arguments: argparse.Namespace, options: Options) -> Manifest:
    from captioner_training.prepare.coco import prepare_coco

    return prepare_coco(
        options,
        year=arguments.year,
        karpathy=arguments.split == "karpathy",
        mirror=arguments.mirror,
        keep_downloads=arguments.keep_downloads,
        name=arguments.name,
        licence=arguments.licence,
    )


def _read(arguments: argparse.Namespace) -> SourceData:
    from captioner_training.prepare import kinds
    from captioner_training.prepare.splits import Fractions
    from captioner_training.prepare.tables import Columns

    asked = {name: getattr(arguments, name) for name in ("val", "test")}
    given = {name: value for name, value in asked.items() if value is not None}
    fractions = Fractions(**given) if given else None
    match arguments.kind:
        case "folder":
            return kinds.read_photo_folder(arguments.path, fractions=fractions)
        case "flickr8k":
            return kinds.read_flickr8k_folder(arguments.path, fractions=fractions)
        case "coco-json":
            return kinds.read_coco_json(
                arguments.files, images=arguments.images, fractions=fractions
            )
    return kinds.read_table(
        arguments.path,
        kind=arguments.kind,
        columns=Columns(
            image=arguments.image_column,
            captions=tuple(arguments.caption_column),
            split=arguments.split_column,
        ),
        delimiter=getattr(arguments, "delimiter", None),
        images=arguments.images,
        fractions=fractions,
    )


def _summarize(manifest: Manifest) -> None:
    counts = "; ".join(
        f"{name} {split.images:,} images, {split.captions:,} captions"
        for name, split in manifest.splits.items()
    )
    print(f"{manifest.name}: {counts}", file=sys.stderr)
    if manifest.skipped:
        left_out = ", ".join(f"{kind}: {count:,}" for kind, count in manifest.skipped.items())
        print(f"left out: {left_out}", file=sys.stderr)
