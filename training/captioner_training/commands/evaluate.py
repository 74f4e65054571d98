"""`captioner evaluate`: score a checkpoint on a captioned split."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

from captioner.errors import ConfigError
from captioner.inference.device import add_machine_arguments
from captioner.shared.paths import HUGGING_FACE, checkpoint_file, expanded

HELP = "Score a checkpoint on a captioned split, prepared or in COCO's captions format."
EXAMPLES = """examples:
  captioner evaluate ~/coco --split test
  captioner evaluate --captions captions_val.json --images val2017 \\
      --official --boxes person_boxes_val.json
  captioner evaluate --captions captions_val.json --score results.json --official
  captioner evaluate ~/coco --report report
  captioner evaluate ~/coco --compare hf:OWNER/MODEL --deletion

Prints a table of scores with 95 % bootstrap intervals over images. The scores use lower-case
Treebank tokens without punctuation and cannot be compared with published scores; --official adds
scores on COCO's tokens, and METEOR."""

_OF_A_CHECKPOINT = ("calibration", "deletion", "checkpoint", "beam_size", "style")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    file = partial(add, type=expanded, metavar="FILE")
    # fmt: off
    add("data", nargs="?", type=expanded, metavar="DIR",
        help="a prepared data set, or captions_SPLIT.json with SPLIT*.tar or a folder SPLIT")
    add("--split", default="val", metavar="NAME", help="split of DIR; default: val")
    file("--captions", help="a JSON file in COCO's format, in place of DIR")
    add("--images", metavar="PATH",
        help="folder, tar file or glob of the images of --captions")
    add("--checkpoint", metavar="MODEL",
        help="file, run folder or USER/MODEL (Hub); default: bundled")
    add("--beam-size", type=int, metavar="N",
        help="default: the checkpoint's, 5 in the bundled one")
    add("--style", metavar="NAME", help="caption style; default: the checkpoint's")
    file("--score",
         help="score the captions of this file (COCO results, records, CSV or Parquet)")
    add("--official", action="store_true",
        help="add scores on COCO's tokens, and METEOR (needs Java)")
    file("--boxes",
         help="COCO boxes of objects, to measure attention on objects and to find absent objects "
              "in captions")
    add("--calibration", action="store_true", help="measure the calibration of word probabilities")
    add("--deletion", action="store_true",
        help="measure how word probabilities fall without the attended cells")
    add("--json", action="store_true", help="print all numbers as JSON")
    file("--report", metavar="DIR", help="write report.html, report.md and report.json here")
    add("--compare", nargs="+", default=[], metavar="MODEL",
        help="other checkpoints or report.json files, to add their measures and the differences")
    # fmt: on
    add_machine_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Score captions and print the scores; return 1 if a measure failed."""
    _check_use(arguments)
    if arguments.checkpoint is not None:
        arguments.checkpoint = checkpoint_file(arguments.checkpoint)

    from captioner_training.evaluation.evaluate import as_json, evaluate
    from captioner_training.report.measures import draw_table
    from captioner_training.report.page import write_report

    evaluation = evaluate(arguments)
    report = evaluation.report
    print(json.dumps(as_json(report), indent=2) if arguments.json else draw_table(report))
    if arguments.report is not None:
        write_report(arguments.report, evaluation)
        print(f"captioner: the report is {arguments.report / 'report.html'}", file=sys.stderr)
    return int(not evaluation.is_complete)


def _check_use(arguments: argparse.Namespace) -> None:
    if (arguments.data is None) == (arguments.captions is None):
        raise ConfigError("name either a folder DIR, or --captions FILE with --images PATH")
    if arguments.score is None and (arguments.captions is None) != (arguments.images is None):
        raise ConfigError("--captions requires --images (and vice versa)")
    for model in (arguments.checkpoint, *arguments.compare) if arguments.calibration else ():
        if str(model).startswith(HUGGING_FACE):
            raise ConfigError(f"--calibration needs Captioner checkpoints, not {model}")
    for name in () if arguments.score is None else _OF_A_CHECKPOINT:
        if getattr(arguments, name):
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} needs a checkpoint and cannot be used with --score")
