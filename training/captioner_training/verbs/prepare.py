"""`captioner prepare KIND`: a data set of any origin as a compact one to train on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.paths import expanded
from captioner_training.prepare.tables import TABLES, Columns

if TYPE_CHECKING:
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

_KINDS = {
    "coco": (
        "COCO captions, downloaded",
        "coco --to ~/coco",
        "coco --to ~/coco --year 2017 --split official",
    ),
    "folder": (
        "photos with captions beside them (photo.jpg, photo.txt)",
        "folder photos --to ~/mine",
        "folder photos --to ~/mine --val 0.05 --test 0.05",
    ),
    **{kind: (table.summary, *table.examples) for kind, table in TABLES.items()},
    "coco-json": (
        "captions in COCO's json format",
        "coco-json train=train.json val=val.json --images photos --to ~/mine",
        "coco-json captions.json --images 'photos-*.tar' --val 0.1 --to ~/mine",
    ),
    "flickr8k": ("Flickr8k as it is distributed", "flickr8k downloads --to ~/flickr8k"),
}
_PATHS: dict[str, dict[str, Any]] = {
    "folder": {
        "metavar": "FOLDER",
        "help": "photos, each with a .txt or .caption file of one caption per line; subfolders "
        "train, val and test are splits",
    },
    **{kind: {"metavar": "FILE", "help": table.help} for kind, table in TABLES.items()},
    "coco-json": {
        "metavar": "[SPLIT=]FILE",
        "nargs": "+",
        "help": "json files with images and annotations",
    },
    "flickr8k": {
        "metavar": "FOLDER",
        "help": "with the images (unpacked or not), and dataset_flickr8k.json; or "
        "Flickr8k.token.txt and Flickr_8k.*Images.txt; or Kaggle's captions.txt",
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the kinds and their options."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, (summary, *examples) in _KINDS.items():
        one = kinds.add_parser(
            kind,
            help=summary,
            description=f"Prepare {summary}.",
            epilog="examples:\n" + "\n".join(f"  captioner prepare {each}" for each in examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if kind == "coco":
            _add_coco(one)
        else:
            one.add_argument("paths", **_PATHS[kind])
            _add_own(one, kind)
        _add_common(one)


def _add_coco(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--year", type=int, choices=(2014, 2017), default=2014, help="or 2017")
    add(
        "--split",
        choices=("karpathy", "official"),
        default="karpathy",
        help="karpathy (default): 113,287, 5,000 and 5,000 images, as in most papers; official: "
        "COCO's own train and val",
    )
    add("--mirror", metavar="URL", help="a folder on the web with the same files")
    add("--keep-downloads", action="store_true", help="do not delete the zip files at the end")


def _add_own(parser: argparse.ArgumentParser, kind: str) -> None:
    add = parser.add_argument
    if kind == "csv":
        add("--delimiter", metavar="CHAR", help="default: found by the first row")
    if kind in TABLES:
        add("--image-column", metavar="NAME", help="the image's file name")
        add(
            "--caption-column",
            metavar="NAME",
            action="append",
            default=[],
            help="a caption or a list of them; may be given several times",
        )
        add("--split-column", metavar="NAME", help="default: split, if there is one")
    if kind in (*TABLES, "coco-json"):
        add(
            "--images",
            nargs="+",
            default=[],
            metavar="PLACE",
            help="folders, tar or zip files, or globs of them; default: the folder of FILE",
        )
    group = parser.add_argument_group("splits, for images that the data set puts into none")
    group.add_argument("--val", type=float, metavar="FRACTION", help="share for val; default: 0.1")
    group.add_argument("--test", type=float, metavar="FRACTION", help="share for test; default: 0")


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--to", type=Path, required=True, metavar="DIR", help="where it is put")
    add("--name", help="of the data set; default: by its origin")
    add("--licence", metavar="TEXT", help="of the data set, for the manifest")
    add("--skip-bad", action="store_true", help="leave out what has problems instead of stopping")
    add("--force", action="store_true", help="replace another data set in DIR")
    add("--size", type=int, default=256, metavar="N", help="pixels of the short side; default: 256")
    add("--quality", type=int, default=90, metavar="N", help="of JPEG, 1 to 100; default: 90")
    add("--shard-images", type=int, default=2000, metavar="N", help="images per tar; default: 2000")
    add("--workers", type=int, metavar="N", help="processes; default: one per core")


def run(arguments: argparse.Namespace) -> int:
    """Prepare the data set; print its folder."""
    from captioner.device import cores
    from captioner_training.prepare.coco import prepare_coco
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
    if arguments.kind == "coco":
        manifest = prepare_coco(
            options,
            year=arguments.year,
            karpathy=arguments.split == "karpathy",
            mirror=arguments.mirror,
            keep_downloads=arguments.keep_downloads,
            name=arguments.name,
            licence=arguments.licence,
        )
    else:
        manifest = _prepare_own(arguments, options)
    counts = "; ".join(
        f"{name} {split.images:,} images, {split.captions:,} captions"
        for name, split in manifest.splits.items()
    )
    print(f"{manifest.name}: {counts}", file=sys.stderr)
    if manifest.skipped:
        left_out = ", ".join(f"{kind}: {count:,}" for kind, count in manifest.skipped.items())
        print(f"left out: {left_out}", file=sys.stderr)
    print(options.to)
    return 0


def _prepare_own(arguments: argparse.Namespace, options: Options) -> Manifest:
    from dataclasses import replace

    from captioner_training.prepare.assemble import assemble
    from captioner_training.prepare.sources import read_source
    from captioner_training.prepare.splits import Fractions
    from captioner_training.prepare.target import claimed, clear

    shares = {name: getattr(arguments, name) for name in ("val", "test")}
    given = {name: share for name, share in shares.items() if share is not None}
    table = {}
    if arguments.kind in TABLES:
        table["columns"] = Columns(
            image=arguments.image_column,
            captions=tuple(arguments.caption_column),
            split=arguments.split_column,
            delimiter=getattr(arguments, "delimiter", None),
        )
    paths = arguments.paths if isinstance(arguments.paths, list) else [arguments.paths]
    data = read_source(
        arguments.kind,
        paths,
        images=getattr(arguments, "images", ()),
        fractions=Fractions(**given) if given else None,
        **table,
    )
    data = replace(
        data, name=arguments.name or data.name, licence=arguments.licence or data.licence
    )
    with claimed(options.to) as work:
        manifest = assemble(data, options, work)
        clear(work)
    return manifest
