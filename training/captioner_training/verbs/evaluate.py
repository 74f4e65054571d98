"""`captioner evaluate`: score a checkpoint on a captioned split."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.errors import CaptionerError, ConfigError
from captioner.files import refuse_input

if TYPE_CHECKING:
    from captioner.predictor import Captioner
    from captioner.vocabulary import Vocabulary
    from captioner_training.data.dataset import CaptionedImage
    from captioner_training.evaluation.captioned import Captioned

HELP = "Score a checkpoint on a split of a data set, prepared or in COCO's captions format."
EXAMPLES = """examples:
  captioner evaluate ~/coco --split test
  captioner evaluate --captions captions_val.json --images 'val*.tar'
  captioner evaluate --captions captions_val.json --images val2017 \\
      --official --boxes person_boxes_val.json --predictions val.jsonl

The scores are printed as one JSON object. Scores without --official are nltk's BLEU on lower-case
Treebank tokens without punctuation; --official adds pycocoevalcap's BLEU, METEOR and CIDEr."""


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
        "--official", action="store_true", help="pycocoevalcap's scorers too (needs Java)"
    )
    parser.add_argument(
        "--boxes", type=Path, metavar="FILE", help="person boxes: is attention for people on them?"
    )
    parser.add_argument(
        "--calibration", action="store_true", help="do words of probability p come true so often?"
    )
    parser.add_argument("--predictions", type=Path, metavar="FILE", help="write the captions there")
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
    if (arguments.captions is None) != (arguments.images is None):
        raise ConfigError("--captions and --images belong together")
    for name in ("data", "captions", "boxes", "predictions"):
        if (path := getattr(arguments, name)) is not None:
            setattr(arguments, name, path.expanduser())
    if arguments.predictions:
        read = (arguments.data, arguments.captions, arguments.checkpoint, arguments.boxes)
        refuse_input("--predictions", arguments.predictions, read)
    _check_files(arguments)

    from captioner.predictor import Captioner
    from captioner_training.data.reading import read_coco, read_dataset
    from captioner_training.evaluation.boxes import check_boxes
    from captioner_training.evaluation.scores import check_official_scorers

    if arguments.official:
        check_official_scorers()
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
    """Look at what is read and written at the end before anything is captioned.

    Raises:
        DataError: the file of boxes cannot be read.
        OutputError: the predictions cannot be written.

    """
    from captioner.errors import DataError, OutputError

    boxes, predictions = arguments.boxes, arguments.predictions
    if boxes is not None and not boxes.is_file():
        raise DataError(f"there is no file {boxes}")
    if predictions is None:
        return
    folder = predictions.parent
    if not folder.is_dir():
        raise OutputError(f"{predictions} cannot be written: there is no folder {folder}")
    if predictions.is_dir() or not os.access(folder, os.W_OK):
        raise OutputError(f"{predictions} cannot be written: choose another --predictions")


def _evaluate(
    arguments: argparse.Namespace, captioner: Captioner, images: Sequence[CaptionedImage]
) -> int:
    """Caption the split; each thing asked for is done by itself, and costs itself if it fails."""
    import torch

    from captioner_training.evaluation.calibration import measure_calibration
    from captioner_training.evaluation.scores import official_scores
    from captioner_training.evaluation.split import caption_split, person_grounding, score_split

    config = captioner.generation
    if arguments.beam_size is not None:
        config = replace(config, beam_size=arguments.beam_size)
    autocast = torch.autocast(captioner.device.type, enabled=False)
    model, transform, words = captioner.model, captioner.transform, captioner.vocabulary
    captioned = caption_split(
        model, images, transform=transform, vocabulary=words, config=config, autocast=autocast
    )
    parts: dict[str, Callable[[], object]] = {"nltk": lambda: score_split(captioned)}
    if arguments.official:
        references = [one.image.captions for one in captioned]
        said = [words.join(one.words) for one in captioned]
        parts["pycocoevalcap"] = lambda: official_scores(references, said)
    if arguments.boxes:
        parts["person_boxes"] = lambda: person_grounding(
            captioned, boxes=arguments.boxes, transform=transform
        )
    if arguments.calibration:
        parts["calibration"] = lambda: measure_calibration(
            model,
            images,
            transform=transform,
            vocabulary=words,
            maximum_length=config.maximum_length,
            autocast=autocast,
        )
    if arguments.predictions:
        parts["predictions"] = lambda: _write(arguments.predictions, captioned, words)
    report: dict[str, object] = {
        "data": str(arguments.data or arguments.captions),
        "images": len(images),
        "beam_size": config.beam_size,
        "dtype": str(captioner.dtype).removeprefix("torch."),
        "checkpoint": {"name": captioner.name.name, "version": captioner.name.version},
    }
    failed = False
    for name, part in parts.items():
        try:
            report[name] = part()
        except CaptionerError as error:
            failed = True
            report[name] = {"error": error.record()}
            print(f"captioner: {name}: {error}", file=sys.stderr)
    print(json.dumps(report, indent=2))
    return 1 if failed else 0


def _write(path: Path, captioned: Sequence[Captioned], vocabulary: Vocabulary) -> str:
    from captioner.files import replace_file

    with replace_file(path) as file:
        for one in captioned:
            record = {
                "image": one.image.name,
                "caption": vocabulary.join(one.words),
                "score": one.hypothesis.score,
            }
            file.write(json.dumps(record).encode() + b"\n")
    return str(path)
