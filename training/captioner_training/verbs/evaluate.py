"""`captioner evaluate`: score a checkpoint on a captioned split."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.errors import ConfigError
from captioner.verbs.machine import add_machine_arguments
from captioner_training.verbs.evaluate_files import PATHS, check_files

if TYPE_CHECKING:
    from captioner_training.data.images import CaptionedImage
    from captioner_training.evaluation.image_row import ImageRow
    from captioner_training.pages.gallery import Gallery

HELP = "Score a checkpoint on a split of a data set, prepared or in COCO's captions format."
EXAMPLES = """examples:
  captioner evaluate ~/coco --split test
  captioner evaluate --captions captions_val.json --images 'val*.tar'
  captioner evaluate --captions captions_val.json --images val2017 \\
      --official --boxes person_boxes_val.json --predictions val.jsonl
  captioner evaluate --captions captions_val.json --score results.json --official
  captioner evaluate ~/coco --report report

The scores are printed as one JSON object, with their 95 % bootstrap intervals over images. Without
--official they are on lower-case Treebank tokens without punctuation: not to be compared with
published ones; --official adds those on COCO's tokens, and METEOR."""


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
    for name in PATHS:
        if (path := getattr(arguments, name)) is not None:
            setattr(arguments, name, path.expanduser())
    check_files(arguments)
    return _evaluate(arguments) if arguments.score is None else _score(arguments)


def _score(arguments: argparse.Namespace) -> int:
    """Score captions that were made elsewhere; no model is read."""
    for name in ("calibration", "deletion", "unlike", "checkpoint", "beam_size", "predictions"):
        if getattr(arguments, name):
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} is about a checkpoint, but --score reads captions alone")

    from captioner_training.data.reading import read_coco, read_dataset
    from captioner_training.evaluation.elsewhere import CaptionsElsewhere
    from captioner_training.evaluation.java import check_java
    from captioner_training.evaluation.predictions import read_corpus, read_targets, targets
    from captioner_training.evaluation.report import describe_data
    from captioner_training.pages.gallery import Gallery, photos_of

    if arguments.official:
        check_java()
    images: Sequence[CaptionedImage] = ()
    if arguments.data:
        images = read_dataset(arguments.data, split=arguments.split)
    elif arguments.images:
        images = read_coco(arguments.captions, arguments.images)
    split = targets(images) if images else read_targets(arguments.captions)
    corpus = read_corpus(arguments.corpus, split)
    there = CaptionsElsewhere(arguments.score, split, corpus=corpus)
    for problem in there.problems:
        print(f"captioner: {problem}", file=sys.stderr)
    report: dict[str, object] = {
        **describe_data(
            arguments.data or arguments.captions, split, corpus=corpus, scored=len(there.places)
        ),
        "scored": len(there.places),
        "predictions": str(arguments.score),
        "problems": there.problems,
    }
    parts = there.parts(
        official=arguments.official, training=arguments.training, boxes=arguments.boxes
    )
    gallery = photos_of([images[at] for at in there.places]) if images else Gallery()
    failed = _finish(arguments, report, parts, lambda: there.rows, gallery)
    return failed or int(len(there.places) < len(split))


def _read(arguments: argparse.Namespace) -> list[CaptionedImage]:
    """Read the split, and look into the boxes, before torch is imported, which takes seconds.

    Raises:
        DataError: the split or the boxes cannot be read, or there is no Java.

    """
    from captioner.geometry import Framing, TransformConfig
    from captioner.header import bundled_checkpoint, read_header
    from captioner_training.data.reading import read_coco, read_dataset
    from captioner_training.evaluation.boxes import check_boxes
    from captioner_training.evaluation.java import check_java

    if arguments.official:
        check_java()
    tokenizer = read_header(arguments.checkpoint or bundled_checkpoint()).get("tokenizer", "words")
    if arguments.data:
        images = read_dataset(arguments.data, split=arguments.split, tokenizer=tokenizer)
    else:
        images = read_coco(arguments.captions, arguments.images, tokenizer=tokenizer)
    if arguments.boxes:
        check_boxes(arguments.boxes, Framing(TransformConfig()), ids={one.id for one in images})
    return images


def _evaluate(arguments: argparse.Namespace) -> int:
    """Caption the split; each thing asked for is done by itself, and costs itself if it fails."""
    images = _read(arguments)
    from captioner.predictor import Captioner
    from captioner_training.evaluation.deletion import FUNCTION_WORDS
    from captioner_training.evaluation.measures import Asked, CaptionedSplit
    from captioner_training.evaluation.predictions import read_corpus, targets
    from captioner_training.evaluation.report import describe_data
    from captioner_training.pages.gallery import photos_of

    captioner = Captioner.from_pretrained(
        arguments.checkpoint, device=arguments.device, dtype=arguments.dtype
    )
    corpus = read_corpus(arguments.corpus, targets(images))
    asked = Asked(
        official=arguments.official,
        boxes=arguments.boxes,
        calibration=arguments.calibration,
        deletion=arguments.deletion,
        training=arguments.training,
        predictions=arguments.predictions,
        unlike=arguments.unlike,
    )
    captioned = CaptionedSplit(
        captioner, images, asked=asked, beam_size=arguments.beam_size, corpus=corpus
    )
    report: dict[str, object] = {
        **describe_data(arguments.data or arguments.captions, captioned.targets, corpus=corpus),
        **captioned.facts(),
    }
    gallery = photos_of(
        images, captioned.captioned, framing=captioner.transform, leave_out=FUNCTION_WORDS
    )
    return _finish(arguments, report, captioned.parts(), lambda: captioned.rows, gallery)


def _finish(
    arguments: argparse.Namespace,
    report: dict[str, object],
    parts: Mapping[str, Callable[[], object]],
    rows: Callable[[], list[ImageRow]],
    gallery: Gallery,
) -> int:
    """Measure the parts, compare, write the report and print it; 1 where something failed."""
    from captioner_training.evaluation.comparison import compare_reports, read_report
    from captioner_training.evaluation.report import measure_parts, print_report
    from captioner_training.pages.writing import write_report

    asked = dict(parts)
    if arguments.compare is not None:
        other = read_report(arguments.compare)
        asked["comparison"] = lambda: compare_reports(report, rows(), other)
    failed = measure_parts(report, asked)
    print_report(report)
    if arguments.report is not None:
        write_report(arguments.report, report, rows(), gallery)
        print(f"captioner: the report is {arguments.report / 'report.html'}", file=sys.stderr)
    return failed
