"""`captioner evaluate`: score a checkpoint on a captioned split."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.errors import ConfigError

if TYPE_CHECKING:
    from captioner.transforms import Transform
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


def run(arguments: argparse.Namespace) -> int:
    """Caption the split, print its scores."""
    if (arguments.data is None) == (arguments.captions is None):
        raise ConfigError("name either a folder DIR or --captions FILE with --images PATH")
    if (arguments.captions is None) != (arguments.images is None):
        raise ConfigError("--captions and --images belong together")

    import torch

    from captioner.predictor import Captioner
    from captioner_training.data.reading import read_coco, read_dataset
    from captioner_training.evaluation.calibration import measure_calibration
    from captioner_training.evaluation.scores import check_official_scorers
    from captioner_training.evaluation.split import caption_split

    if arguments.official:
        check_official_scorers()
    if arguments.data:
        images = read_dataset(arguments.data, split=arguments.split)
    else:
        images = read_coco(arguments.captions, arguments.images)
    captioner = Captioner.from_pretrained(arguments.checkpoint, device=arguments.device)
    config = captioner.generation
    if arguments.beam_size is not None:
        config = replace(config, beam_size=arguments.beam_size)
    autocast = torch.autocast(captioner.device.type, enabled=False)
    captioned = caption_split(
        captioner.model,
        images,
        transform=captioner.transform,
        vocabulary=captioner.vocabulary,
        config=config,
        autocast=autocast,
    )
    report: dict[str, Any] = {
        "data": str(arguments.data or arguments.captions),
        "images": len(images),
        "beam_size": config.beam_size,
        "checkpoint": {"name": captioner.name.name, "version": captioner.name.version},
        **_scores(arguments, captioned, captioner.transform),
    }
    if arguments.calibration:
        report["calibration"] = measure_calibration(
            captioner.model,
            images,
            transform=captioner.transform,
            vocabulary=captioner.vocabulary,
            maximum_length=config.maximum_length,
            autocast=autocast,
        )
    if arguments.predictions:
        _write(arguments.predictions, captioned)
    print(json.dumps(report, indent=2))
    return 0


def _scores(
    arguments: argparse.Namespace, captioned: Sequence[Captioned], transform: Transform
) -> dict[str, Any]:
    from captioner.vocabulary import join
    from captioner_training.evaluation.scores import official_scores
    from captioner_training.evaluation.split import person_grounding, score_split

    scores: dict[str, Any] = {"nltk": score_split(captioned)}
    if arguments.official:
        scores["pycocoevalcap"] = official_scores(
            [one.image.captions for one in captioned], [join(one.words) for one in captioned]
        )
    if arguments.boxes:
        scores["person_boxes"] = person_grounding(
            captioned, boxes=arguments.boxes, transform=transform
        )
    return scores


def _write(path: Path, captioned: Sequence[Captioned]) -> None:
    from captioner.errors import OutputError
    from captioner.vocabulary import join

    try:
        with path.open("w", encoding="utf-8") as file:
            for one in captioned:
                record = {"image": one.image.name, "caption": join(one.words)}
                file.write(json.dumps({**record, "score": one.hypothesis.score}) + "\n")
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error
    print(f"captions written to {path}", file=sys.stderr)
