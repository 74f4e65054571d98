"""`captioner trust`: write down when a checkpoint is right, and what its photos are like."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.device import add_machine_arguments
from captioner.errors import ConfigError, DataError
from captioner.hub import is_hub_name
from captioner.paths import expanded

if TYPE_CHECKING:
    from captioner_training.data.images import CaptionedImage

HELP = "Let a checkpoint say how far its words can be trusted, and which photos are new to it."
EXAMPLES = """examples:
  captioner trust runs/coco/best.safetensors ~/coco
  captioner trust runs/finetune/best.safetensors ~/mine ~/more --photos 2000

What is found is written beside the checkpoint (beside best.safetensors: best.trust.safetensors),
and the path is printed. From then on records have `trust`, the probability that a word or the whole
caption is right, and `familiarity`, the share of validation photos that are less like the training
photos than this one. It is learned from photos of the training and from every second one of
validation; how well it does on the others is said on standard error. Of 3,000 photos or more it
learns too which of a beam's sentences people would agree with: that one is said from then on. Of
fewer it takes over what the bundled model knows, if the encoder is the same and its words too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT")
    add("data", nargs="+", type=Path, metavar="DIR",
        help="data sets of the training: their splits train and val are read")  # fmt: skip
    add("--photos", type=int, default=20000, metavar="N",
        help="at most so many of train, and half as many of val; default: 20000")  # fmt: skip
    add_machine_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Encode photos, caption those of validation, and write what is learned of them."""
    from captioner.checkpoint import load_checkpoint
    from captioner.predictor import Captioner
    from captioner.trust.trust import trust_file
    from captioner_training.conclusion import write_trust
    from captioner_training.evaluation.trust import FEWEST_PHOTOS

    if arguments.photos < FEWEST_PHOTOS:
        raise ConfigError(f"--photos {arguments.photos} is too few to learn from: {FEWEST_PHOTOS}")
    if not expanded(arguments.checkpoint).exists() and is_hub_name(
        name := str(arguments.checkpoint)
    ):
        raise ConfigError(
            f"{name}: trust is written beside a checkpoint, and the Hub's cache is no place for "
            f"it: `hf download {name.replace('@', ' --revision ')} --local-dir DIR`, then "
            "`captioner trust DIR`."
        )
    checkpoint = load_checkpoint(arguments.checkpoint)
    folders = [expanded(folder) for folder in arguments.data]
    train = _some_photos(folders, "train", arguments.photos)
    validation = _some_photos(folders, "val", arguments.photos // 2)
    for split, photos in (("training", train), ("validation", validation)):
        if len(photos) < FEWEST_PHOTOS:
            raise DataError(
                f"{' '.join(map(str, folders))}: {len(photos)} {split} photos are too few to learn "
                f"from: {FEWEST_PHOTOS}"
            )
    # Not from_pretrained: it reads the file that is there, which may be damaged.
    captioner = Captioner(checkpoint, device=arguments.device, dtype=arguments.dtype)
    for line in write_trust(captioner, arguments.checkpoint, train, validation):
        print(f"captioner: {line}", file=sys.stderr)
    print(trust_file(arguments.checkpoint))
    return 0


def _some_photos(folders: Sequence[Path], split: str, count: int) -> list[CaptionedImage]:
    """Draw as many photos from every data set, the same each time, in their order."""
    from captioner_training.data.reading import read_dataset

    found: list[CaptionedImage] = []
    for folder in folders:
        images = read_dataset(folder, split=split)
        most = min(-(-count // len(folders)), len(images))
        found += [images[at] for at in sorted(random.Random(0).sample(range(len(images)), most))]
    return found
