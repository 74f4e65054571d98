"""`captioner evaluate`: score a checkpoint on a captioned split."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.errors import ConfigError
from captioner.inference.device import add_machine_arguments
from captioner.paths import HUGGING_FACE, checkpoint_file, expanded
from captioner.terminal import printable

if TYPE_CHECKING:  # these import torch, which would make --help slow
    from captioner_training.evaluation.inputs import EvaluationInputs
    from captioner_training.evaluation.measures import CaptionedSplit
    from captioner_training.evaluation.report import ImageRow
    from captioner_training.report.gallery import Gallery

HELP = "Score a checkpoint on a captioned split, prepared or in COCO's captions format."
EXAMPLES = """examples:
  captioner evaluate ~/coco --split test
  captioner evaluate --captions captions_val.json --images val2017 \\
      --official --boxes person_boxes_val.json --predictions val.jsonl
  captioner evaluate --captions captions_val.json --score results.json --official
  captioner evaluate ~/coco --report report
  captioner evaluate ~/coco --compare bundled hf:OWNER/MODEL --deletion --calibration

Prints a table of scores with 95 % bootstrap intervals over images. The scores use lower-case
Treebank tokens without punctuation and cannot be compared with published scores; --official adds
scores on COCO's tokens, and METEOR."""

_OF_A_CHECKPOINT = (
    "calibration",
    "deletion",
    "unlike",
    "checkpoint",
    "beam_size",
    "style",
    "predictions",
    "save",
)
_READ = ("data", "captions", "boxes", "score", "training", "corpus")
_PATHS = (*_READ, "predictions", "report", "unlike", "save")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    file = partial(add, type=Path, metavar="FILE")
    # fmt: off
    add("data", nargs="?", type=Path, metavar="DIR",
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
         help="score the captions of this file (COCO results or caption records), not a checkpoint")
    file("--corpus",
         help="COCO captions of the whole split, for document frequencies if DIR is a part of it")
    add("--official", action="store_true",
        help="add scores on COCO's tokens, and METEOR (needs Java)")
    file("--training",
         help="COCO captions of the training split, to count captions that are not in it")
    file("--boxes",
         help="COCO boxes of objects, to measure attention on objects and to find absent objects "
              "in captions")
    add("--calibration", action="store_true", help="measure the calibration of word probabilities")
    add("--deletion", action="store_true",
        help="measure how word probabilities fall without the attended cells")
    file("--unlike", metavar="DIR",
         help="folder of other pictures, to measure whether they are unfamiliar")
    add("--json", action="store_true", help="print all numbers as JSON")
    file("--predictions",
         help="write the captions to this file, as COCO results if it ends in .json")
    file("--save", help="write a copy of the checkpoint with these scores and its trust")
    add("--version", metavar="TEXT", help="version of the copy; default: unchanged")
    file("--report", metavar="DIR", help="write report.html and report.json to this folder")
    add("--compare", nargs="+", default=[], metavar="MODEL",
        help="other checkpoints or report.json files, to add their scores and the differences")
    add("--open", action="store_true", help="open the report in a browser")
    # fmt: on
    add_machine_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Score captions and print the scores; return 1 if a measure failed."""
    _check_use(arguments)
    for name in _PATHS:
        if (path := getattr(arguments, name)) is not None:
            setattr(arguments, name, expanded(path))
    if arguments.checkpoint is not None:
        arguments.checkpoint = checkpoint_file(arguments.checkpoint)

    from captioner_training.evaluation.inputs import is_report, read_inputs
    from captioner_training.evaluation.report import as_json
    from captioner_training.report.evaluation import write_report
    from captioner_training.report.table import draw_table

    reports = [expanded(name) for name in arguments.compare if is_report(name)]
    own = [getattr(arguments, name) for name in _READ]
    inputs = read_inputs(arguments, [*own, *reports, arguments.checkpoint])
    failed, report, rows, galleries = _compare(arguments, inputs)
    print(json.dumps(as_json(report), indent=2) if arguments.json else draw_table(report))
    if arguments.report is not None:
        write_report(arguments.report, report, rows, galleries)
        page = arguments.report / "report.html"
        print(f"captioner: the report is {page}", file=sys.stderr)
        if arguments.open:
            webbrowser.open(page.resolve().as_uri())
    return int(failed or inputs.scored < len(inputs.split))


def _check_use(arguments: argparse.Namespace) -> None:
    from captioner.vocabulary import is_printable

    if (arguments.data is None) == (arguments.captions is None):
        raise ConfigError("name either a folder DIR, or --captions FILE with --images PATH")
    if arguments.score is None and (arguments.captions is None) != (arguments.images is None):
        raise ConfigError("--captions requires --images (and vice versa)")
    if arguments.save is not None and (arguments.beam_size or arguments.style):
        raise ConfigError("--save cannot be used with --beam-size or --style")
    if arguments.save is not None and str(arguments.checkpoint).startswith(HUGGING_FACE):
        raise ConfigError(f"--save needs a Captioner checkpoint, not {arguments.checkpoint}")
    version = arguments.version
    if version is not None and arguments.save is None:
        raise ConfigError("--version requires --save FILE")
    if version is not None and not (version and is_printable(version)):
        raise ConfigError(f"--version {version!a} is empty or not plain text: use a number like 2")
    if arguments.open and arguments.report is None:
        raise ConfigError("--open requires --report DIR")
    for name in () if arguments.score is None else _OF_A_CHECKPOINT:
        if getattr(arguments, name):
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} needs a checkpoint and cannot be used with --score")


def _compare(
    arguments: argparse.Namespace, inputs: EvaluationInputs
) -> tuple[bool, dict[str, Any], list[ImageRow], list[Gallery]]:
    """Measure the checkpoint and the models of --compare.

    Returns whether a measure failed, the report, a row per image, and for each model the photos
    with its captions.
    """
    from captioner_training.evaluation.inputs import EvaluationInputs
    from captioner_training.evaluation.report import (
        beside,
        check_comparable,
        compare_reports,
        describe_data,
        measure_parts,
    )
    from captioner_training.report.gallery import Gallery

    report: dict[str, Any] = describe_data(
        arguments.data or arguments.captions,
        inputs.split,
        name=arguments.split if arguments.data else None,
        corpus=inputs.corpus,
        scored=inputs.scored,
    )
    facts = dict(report)
    for other in inputs.others if arguments.score is None else ():
        if not isinstance(other, EvaluationInputs):
            check_comparable(report, other)  # before captioning, which takes minutes
    failed, rows, gallery = _measure(arguments, inputs, report)
    galleries = [gallery]
    for other in inputs.others:
        gallery = Gallery()
        if isinstance(other, EvaluationInputs):
            measured = dict(facts)
            has_failed, other_rows, gallery = _measure(arguments, other, measured, is_other=True)
            failed |= has_failed
            other = {**measured, "per_image": [row.record() for row in other_rows]}
        compared = partial(compare_reports, report, rows, other)
        name = (other.get("checkpoint") or {}).get("name") or str(other.get("predictions"))
        if measure_parts(report, {"comparison": compared}, model=name):
            failed = True
            continue
        report.setdefault("comparisons", []).append(report.pop("comparison"))
        rows = beside(rows, other)
        galleries.append(gallery)
    return failed, report, rows, galleries


def _measure(
    arguments: argparse.Namespace,
    inputs: EvaluationInputs,
    report: dict[str, Any],
    *,
    is_other: bool = False,
) -> tuple[bool, list[ImageRow], Gallery]:
    """Add the requested measures to the report.

    Returns whether a measure failed, a row per image, and the photos with their captions. For a
    model of --compare (`is_other`), no files are written.
    """
    from captioner_training.evaluation.caption_set import CaptionSet
    from captioner_training.evaluation.measures import CaptionedSplit
    from captioner_training.evaluation.predictions import Predictions
    from captioner_training.evaluation.report import measure_parts
    from captioner_training.report.gallery import Gallery

    options: dict[str, Any] = {
        "official": arguments.official, "training": inputs.training, "boxes": inputs.boxes,
    }  # fmt: skip
    source, model = inputs.source, ""
    rows: Callable[[], list[ImageRow]]
    if isinstance(source, Predictions):
        captions = CaptionSet.from_predictions(source, inputs.split, corpus=inputs.corpus)
        for problem in source.problems:
            print(f"captioner: {printable(problem)}", file=sys.stderr)
        report["scored"] = len(captions.targets)
        report["predictions"] = str(arguments.score)
        report["problems"] = source.problems
        parts, rows = captions.parts(**options), captions.rows
        pairs = zip(inputs.images, source.captions, strict=False)  # there may be no images
        gallery = Gallery(images=[image for image, caption in pairs if caption is not None])
    else:
        split = CaptionedSplit(
            source,
            inputs.images,
            calibration=arguments.calibration,
            deletion=arguments.deletion,
            beam_size=arguments.beam_size,
            style=None if is_other else arguments.style,
            corpus=inputs.corpus,
        )
        report |= split.facts()
        if is_other:
            model = source.name
        else:
            options |= {"unlike": arguments.unlike, "predictions": arguments.predictions}
        parts, rows = split.parts(**options), split.rows
        if arguments.save is not None and not is_other:
            parts["saved"] = partial(_save, arguments, split)
        gallery = Gallery(images=inputs.images, captioned=split.captioned, framing=source.transform)
    failed = measure_parts(report, parts, model=model)
    return failed, rows(), gallery


def _save(arguments: argparse.Namespace, split: CaptionedSplit) -> str:
    from captioner.checkpoint import copy_checkpoint
    from captioner.paths import bundled_checkpoint
    from captioner.trust.trust import trust_file

    source, target = arguments.checkpoint or bundled_checkpoint(), arguments.save
    version = arguments.version or split.captioner.version
    copy_checkpoint(source, target, version=version, metrics=split.metrics())
    if trust_file(source).is_file():
        shutil.copyfile(trust_file(source), trust_file(target))
    print(f"captioner: {target} is the checkpoint with these scores", file=sys.stderr)
    return str(target)
