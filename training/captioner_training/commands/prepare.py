"""`captioner prepare KIND`: convert a data set to tar shards for training."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from captioner.shared.paths import expanded
from captioner_training.prepare.columns import Columns

if TYPE_CHECKING:
    from captioner_training.data.manifest import Manifest
    from captioner_training.prepare.assembly import Options

HELP = "Convert a data set for training: resized images in tar shards, with a manifest."
EXAMPLES = """examples:
  captioner prepare coco --to ~/coco
  captioner prepare folder photos --to ~/mine
  captioner prepare csv captions.csv --images photos --to ~/mine
  captioner prepare coco-json train=train.json val=val.json --images photos --to ~/mine
  captioner train coco-fast --data.root ~/coco

'captioner prepare KIND --help' lists the options of a kind. If the data has problems, all are
reported and nothing is prepared; --skip-bad leaves them out. The same command resumes after an
interruption. The path of the folder is printed on standard output."""


class _Kind(NamedTuple):
    """Help of a kind of data set."""

    summary: str
    example: str
    metavar: str = "FILE"
    help: str | None = None


KINDS = {
    "coco": _Kind("COCO captions, downloaded", "coco --to ~/coco --year 2017"),
    "folder": _Kind(
        "photos with captions beside them (photo.jpg, photo.txt)",
        "folder photos --to ~/mine --val 0.05 --test 0.05",
        "FOLDER",
        "folder with photos and a .txt or .caption file for each (one caption per line), with "
        "photos and a table of captions, with Parquet files or with WebDataset shards; or tar or "
        "zip files of photos",
    ),
    "csv": _Kind(
        "a text table with one row per caption",
        "csv captions.csv --images photos --to ~/mine",
        help="text tables with a header, and .token files",
    ),
    "xlsx": _Kind(
        "the first sheet of a workbook, one row per caption",
        "xlsx captions.xlsx --images photos --to ~/mine",
    ),
    "jsonl": _Kind(
        "a file with one JSON object per line",
        "jsonl metadata.jsonl --image-column file_name --caption-column text --to ~/mine",
    ),
    "parquet": _Kind(
        "Parquet tables, one row per caption or image, with the images inside or elsewhere",
        "parquet data/train-*.parquet data/test-*.parquet --to ~/mine",
    ),
    "coco-json": _Kind(
        "captions in COCO's or Karpathy's json format",
        "coco-json train=train.json val=val.json --images photos --to ~/mine",
        "[SPLIT=]FILE",
        "json files in COCO's or Karpathy's format",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the kinds and their options."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, kind in KINDS.items():
        subparser = kinds.add_parser(
            name,
            help=kind.summary,
            description=f"Prepare {kind.summary}.",
            epilog=f"example:\n  captioner prepare {kind.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == "coco":
            _add_coco(subparser)
        else:
            _add_source(subparser, name, kind)
        _add_common(subparser)


def _add_coco(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--year", type=int, choices=(2014, 2017), default=2014, help="default: 2014")
    add("--split", choices=("karpathy", "official"), default="karpathy",
        help="karpathy (default): 113,287, 5,000 and 5,000 images, as in most papers; official: "
        "COCO's own train and val")  # fmt: skip
    add("--mirror", metavar="URL", help="download the files from this address instead")


def _add_source(parser: argparse.ArgumentParser, name: str, kind: _Kind) -> None:
    parser.set_defaults(images=[], image_column=None, caption_column=[], split_column=None)
    add = parser.add_argument
    add("paths", metavar=kind.metavar, nargs="+", help=kind.help)
    if name not in ("folder", "coco-json"):
        add("--image-column", metavar="NAME", help="column of file names; default: by its name")
        add("--caption-column", metavar="NAME", action="append", default=[],
            help="column of captions or of lists of captions; may be repeated; "
            "default: by its name")  # fmt: skip
        add("--split-column", metavar="NAME", help="default: by its name, if there is one")
    if name != "folder":
        add("--images", nargs="+", default=[], metavar="PLACE",
            help="folders, tar or zip files, or globs of them; default: "
            "the folder of FILE")  # fmt: skip
    group = parser.add_argument_group(
        "splits to draw from the photos in train and those without a split"
    )
    add = group.add_argument
    add("--val", type=float, metavar="FRACTION",
        help="share for val; default: 0.1 if no photo has a split")  # fmt: skip
    add("--test", type=float, metavar="FRACTION", help="share for test; default: 0")


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--to", type=Path, required=True, metavar="DIR", help="folder to write")
    add("--name", help="name of the data set; default: from its source")
    add("--licence", metavar="TEXT", help="licence of the data set, for the manifest")
    add("--skip-bad", action="store_true", help="leave out images and rows with problems")
    add("--force", action="store_true", help="replace another data set in DIR")
    add("--size", type=int, default=256, metavar="N", help="pixels of the short side; default: 256")
    add("--quality", type=int, default=90, metavar="N", help="JPEG quality, 1 to 100; default: 90")
    add("--workers", type=int, metavar="N", help="processes; default: one per core")


def run(arguments: argparse.Namespace) -> int:
    """Prepare the data set and print its folder."""
    from captioner.inference.device import cores
    from captioner.shared.text import counted, printable
    from captioner_training.data.manifest import ImageFormat
    from captioner_training.prepare.assembly import Options
    from captioner_training.prepare.coco import prepare_coco

    options = Options(
        to=expanded(arguments.to),
        image=ImageFormat(short_side=arguments.size, quality=arguments.quality),
        workers=cores() if arguments.workers is None else arguments.workers,
        skip_bad=arguments.skip_bad,
        force=arguments.force,
        name=arguments.name,
        licence=arguments.licence,
    )
    if arguments.kind == "coco":
        manifest = prepare_coco(
            options,
            year=arguments.year,
            karpathy=arguments.split == "karpathy",
            mirror=arguments.mirror,
        )
    else:
        manifest = _prepare_source(arguments, options)
    counts = "; ".join(
        f"{name} {counted(split.images, 'image')}, {counted(split.captions, 'caption')}"
        for name, split in manifest.splits.items()
    )
    print(f"{manifest.name}: {counts}", file=sys.stderr)
    origin = manifest.source.get("splits") or f"from COCO, {manifest.source.get('split')}"
    print(f"split: {printable(str(origin))}", file=sys.stderr)
    if manifest.skipped:
        left_out = ", ".join(f"{kind}: {count:,}" for kind, count in manifest.skipped.items())
        print(f"left out: {left_out}", file=sys.stderr)
    print(options.to)
    return 0


def _prepare_source(arguments: argparse.Namespace, options: Options) -> Manifest:
    from captioner_training.prepare.assembly import assemble, claim_folder
    from captioner_training.prepare.sources import read_source
    from captioner_training.prepare.splits import Fractions

    shares = {name: getattr(arguments, name) for name in ("val", "test")}
    given = {name: share for name, share in shares.items() if share is not None}
    data = read_source(
        arguments.kind,
        arguments.paths,
        images=arguments.images,
        columns=Columns(
            image=arguments.image_column,
            captions=tuple(arguments.caption_column),
            split=arguments.split_column,
        ),
        fractions=Fractions(**given) if given else None,
    )
    with claim_folder(options.to) as work:
        return assemble(data, options, work)
