"""`captioner evaluate`: score a checkpoint on a captioned split."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.errors import ConfigError
from captioner.files import refuse_input

if TYPE_CHECKING:
    from captioner.predictor import Captioner
    from captioner_training.data.dataset import CaptionedImage

HELP = "Score a checkpoint on a split of a data set, prepared or in COCO's captions format."
EXAMPLES = """examples:
  captioner evaluate ~/coco --split test
  captioner evaluate --captions captions_val.json --images 'val*.tar'
  captioner evaluate --captions captions_val.json --images val2017 \\
      --official --boxes person_boxes_val.json --predictions val.jsonl
  captioner evaluate --captions captions_val.json --score results.json --official

The scores are printed as one JSON object, with their 95 % bootstrap intervals over images. Without
--official they are on lower-case Treebank tokens without punctuation: not to be compared with
published ones; --official adds those on COCO's tokens, and METEOR."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
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
        "--official", action="store_true", help="on COCO's tokens too, with METEOR (needs Java)"
    )
    parser.add_argument(
        "--score",
        type=Path,
        metavar="FILE",
        help="score these captions instead of a checkpoint's: COCO results, or caption records",
    )
    parser.add_argument(
        "--training",
        type=Path,
        metavar="FILE",
        help="captions of training, as COCO's json: how many captions are new?",
    )
    parser.add_argument(
        "--boxes", type=Path, metavar="FILE", help="person boxes: is attention for people on them?"
    )
    parser.add_argument(
        "--calibration", action="store_true", help="do words of probability p come true so often?"
    )
    parser.add_argument(
        "--deletion",
        action="store_true",
        help="does a word's probability fall without the cells it looked at?",
    )
    parser.add_argument(
        "--predictions",
        type=Path,
        metavar="FILE",
        help="write the captions there; .json: as COCO results",
    )
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="default: auto")
    parser.add_argument(
        "--dtype",
        default="auto",
        metavar="auto|float32|bfloat16",
        help="default: auto, which is bfloat16 where the hardware has it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Caption the split, print its scores; 1 where one of the things asked for failed."""
    if (arguments.data is None) == (arguments.captions is None):
        raise ConfigError("name either a folder DIR or --captions FILE with --images PATH")
    if arguments.score is None and (arguments.captions is None) != (arguments.images is None):
        raise ConfigError("--captions and --images belong together")
    for name in ("data", "captions", "boxes", "predictions", "score", "training"):
        if (path := getattr(arguments, name)) is not None:
            setattr(arguments, name, path.expanduser())
    if arguments.predictions:
        read = (
            arguments.data,
            arguments.captions,
            arguments.checkpoint,
            arguments.boxes,
            arguments.training,
        )
        refuse_input("--predictions", arguments.predictions, read)
    _check_files(arguments)
    if arguments.score is not None:
        return _score(arguments)

    from captioner.predictor import Captioner
    from captioner_training.data.reading import read_coco, read_dataset
    from captioner_training.evaluation.boxes import check_boxes
    from captioner_training.evaluation.java import check_java

    if arguments.official:
        check_java()
    captioner = Captioner.from_pretrained(
        arguments.checkpoint, device=arguments.device, dtype=arguments.dtype
    )
    tokenizer = captioner.vocabulary.tokenizer
    if arguments.data:
        images = read_dataset(arguments.data, split=arguments.split, tokenizer=tokenizer)
    else:
        images = read_coco(arguments.captions, arguments.images, tokenizer=tokenizer)
    if arguments.boxes:
        check_boxes(arguments.boxes, captioner.transform, ids={image.id for image in images})
    return _evaluate(arguments, captioner, images)


def _check_files(arguments: argparse.Namespace) -> None:
    """Look at what is read and written before torch is imported, which takes seconds.

    Raises:
        CheckpointError: there is no such checkpoint, or it is none.
        ConfigError: the beam size is out of range, or there is no such dtype.
        DeviceError: this machine has no such device.
        DataError: the data set, the captions or the boxes are not there.
        OutputError: the predictions cannot be written.

    """
    from captioner.errors import DataError, OutputError
    from captioner.paths import there_is_no
    from captioner.verbs.model import check_model
    from captioner_training.data.unprepared import check_readable

    if arguments.data:
        check_readable(arguments.data, arguments.split)
    for path in (arguments.captions, arguments.boxes, arguments.score, arguments.training):
        if path is not None and not path.is_file():
            raise DataError(there_is_no("file", path))
    if arguments.score is None:
        check_model(arguments).asked(beam_size=arguments.beam_size)
    predictions = arguments.predictions
    if predictions is None:
        return
    folder = predictions.parent
    if not folder.is_dir():
        raise OutputError(f"{predictions} cannot be written: there is no folder {folder}")
    if predictions.is_dir() or not os.access(folder, os.W_OK):
        raise OutputError(f"{predictions} cannot be written: choose another --predictions")


def _score(arguments: argparse.Namespace) -> int:
    """Score captions that were made elsewhere; no model is read."""
    for name in ("boxes", "calibration", "deletion", "checkpoint", "beam_size", "predictions"):
        if getattr(arguments, name):
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} is about a checkpoint, but --score reads captions alone")

    from captioner.vocabulary import tokenize
    from captioner_training.data.reading import read_dataset
    from captioner_training.evaluation.facts import describe_captions
    from captioner_training.evaluation.java import check_java
    from captioner_training.evaluation.predictions import read_predictions, read_targets, targets
    from captioner_training.evaluation.report import describe_data, print_report
    from captioner_training.evaluation.scores import fallback_scores, official_scores

    if arguments.official:
        check_java()
    if arguments.data:
        split = targets(read_dataset(arguments.data, split=arguments.split))
    else:
        split = read_targets(arguments.captions)
    read = read_predictions(arguments.score, split)
    for problem in read.problems:
        print(f"captioner: {problem}", file=sys.stderr)
    pairs = [
        (one, caption)
        for one, caption in zip(split, read.captions, strict=True)
        if caption is not None
    ]
    said = [caption for _, caption in pairs]
    words = [tokenize(caption) for caption in said]
    whole = [[tokenize(text) for text in one.references] for one in split]
    mine = [[tokenize(text) for text in one.references] for one, _ in pairs]
    parts: dict[str, Callable[[], object]] = {
        "nltk": lambda: fallback_scores(mine, words, corpus=whole),
        "captions": lambda: describe_captions(words, references=mine, training=arguments.training),
    }
    if arguments.official:
        parts["pycocoevalcap"] = lambda: official_scores(
            [one.references for one, _ in pairs],
            said,
            corpus=[one.references for one in split],
        )
    report: dict[str, object] = {
        **describe_data(arguments.data or arguments.captions, split),
        "scored": len(pairs),
        "predictions": str(arguments.score),
        "problems": read.problems,
    }
    return print_report(report, parts) or int(len(pairs) < len(split))


def _evaluate(
    arguments: argparse.Namespace, captioner: Captioner, images: Sequence[CaptionedImage]
) -> int:
    """Caption the split; each thing asked for is done by itself, and costs itself if it fails."""
    from captioner_training.evaluation.measures import Asked, CaptionedSplit
    from captioner_training.evaluation.report import describe_data, print_report

    captioned = CaptionedSplit(captioner, images, beam_size=arguments.beam_size)
    asked = Asked(
        official=arguments.official,
        boxes=arguments.boxes,
        calibration=arguments.calibration,
        deletion=arguments.deletion,
        training=arguments.training,
        predictions=arguments.predictions,
    )
    report: dict[str, object] = {
        **describe_data(arguments.data or arguments.captions, captioned.targets),
        **captioned.facts(),
    }
    return print_report(report, captioned.parts(asked))
