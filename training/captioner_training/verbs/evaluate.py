"""`captioner evaluate`: score a checkpoint on a captioned split."""

from __future__ import annotations

import argparse
from pathlib import Path

from captioner.errors import ConfigError
from captioner.paths import expanded
from captioner.verbs.machine import add_machine_arguments

HELP = "Score a checkpoint on a split of a data set, prepared or in COCO's captions format."
EXAMPLES = """examples:
  captioner evaluate ~/coco --split test
  captioner evaluate --captions captions_val.json --images 'val*.tar'
  captioner evaluate --captions captions_val.json --images val2017 \\
      --official --boxes person_boxes_val.json --predictions val.jsonl
  captioner evaluate --captions captions_val.json --score results.json --official
  captioner evaluate ~/coco --report report

The scores are printed as a table, with their 95 % bootstrap intervals over images; --json prints
all numbers as one JSON object. Without --official they are on lower-case Treebank tokens without
punctuation: not to be compared with published ones; --official adds those on COCO's tokens, and
METEOR."""

_OF_A_CHECKPOINT = (
    "calibration",
    "deletion",
    "unlike",
    "checkpoint",
    "beam_size",
    "style",
    "predictions",
)
_READ = ("data", "captions", "boxes", "score", "training", "compare", "corpus")
_PATHS = (*_READ, "predictions", "report", "unlike")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    _data_arguments(parser)
    _measure_arguments(parser)
    _output_arguments(parser)
    add_machine_arguments(parser)


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="a prepared data set, or captions_SPLIT.json with SPLIT*.tar or a folder SPLIT",
    )
    parser.add_argument("--split", default="val", metavar="NAME", help="of DIR; default: val")
    parser.add_argument("--captions", type=Path, metavar="FILE", help="instead of DIR: a json file")
    parser.add_argument(
        "--images", metavar="PATH", help="with --captions: folder or tar of images, or their glob"
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="default: the bundled one")
    parser.add_argument(
        "--beam-size",
        type=int,
        metavar="N",
        help="default: the checkpoint's; the bundled one's is 5",
    )
    parser.add_argument(
        "--style", metavar="NAME", help="of a model with several; default: the checkpoint's"
    )
    parser.add_argument(
        "--score",
        type=Path,
        metavar="FILE",
        help="score these captions instead of a checkpoint's: COCO results, or caption records",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="FILE",
        help="captions of the whole split, as COCO's json, where this is a part of it",
    )


def _measure_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--official", action="store_true", help="on COCO's tokens too, with METEOR (needs Java)"
    )
    parser.add_argument(
        "--training",
        type=Path,
        metavar="FILE",
        help="captions of training, as COCO's json: how many captions are new?",
    )
    parser.add_argument(
        "--boxes",
        type=Path,
        metavar="FILE",
        help="boxes of objects: is attention for them there, are they named without being there?",
    )
    parser.add_argument(
        "--calibration",
        action="store_true",
        help="are words of probability p right in p of the cases?",
    )
    parser.add_argument(
        "--deletion",
        action="store_true",
        help="does a word's probability fall without the cells it looked at?",
    )
    parser.add_argument(
        "--unlike", type=Path, metavar="DIR", help="pictures that are to be found unfamiliar"
    )


def _output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print all numbers, for programs")
    parser.add_argument(
        "--predictions",
        type=Path,
        metavar="FILE",
        help="write the captions there; .json: as COCO results",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="write report.html, report.md and report.json there",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="another report.json: the differences of the scores",
    )


def run(arguments: argparse.Namespace) -> int:
    """Caption the split, print its scores; 1 where one of the things asked for failed."""
    if (arguments.data is None) == (arguments.captions is None):
        raise ConfigError("name either a folder DIR or --captions FILE with --images PATH")
    if arguments.score is None and (arguments.captions is None) != (arguments.images is None):
        raise ConfigError("--captions and --images belong together")
    for name in _PATHS:
        if (path := getattr(arguments, name)) is not None:
            setattr(arguments, name, expanded(path))
    for name in () if arguments.score is None else _OF_A_CHECKPOINT:
        if getattr(arguments, name):
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} is about a checkpoint, but --score reads captions alone")
    from captioner_training.evaluate import evaluate

    read = [*(getattr(arguments, name) for name in _READ), arguments.checkpoint]
    return evaluate(arguments, read=read)
