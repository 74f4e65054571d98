"""`captioner trust`: fit the trust of a checkpoint."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.errors import ConfigError, DataError
from captioner.hub import is_hub_name
from captioner.inference.device import add_machine_arguments
from captioner.shared.paths import expanded

if TYPE_CHECKING:
    from captioner_training.data.images import CaptionedImage

HELP = "Fit trust and familiarity of a checkpoint on its training data."
EXAMPLES = """examples:
  captioner trust runs/coco/best.safetensors ~/coco
  captioner trust runs/finetune/best.safetensors ~/mine ~/more --photos 2000

Writes a file beside the checkpoint (best.trust.safetensors beside best.safetensors) and prints its
path. Records then have `trust`, the probability that a word or the whole caption is right, and
`familiarity`, the share of validation photos that are less similar to the training photos. Both are
fitted on training photos and every second validation photo; the quality on the other validation
photos is printed on standard error. With 3,000 or more training photos it also fits the consensus
that ranks the sentences of a beam."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT")
    add("data", nargs="+", type=Path, metavar="DIR",
        help="training data sets, with splits train and val")  # fmt: skip
    add("--photos", type=int, default=20000, metavar="N",
        help="use at most N photos of train and half as many of val; default: 20000")  # fmt: skip
    add_machine_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Fit and write the trust of a checkpoint; print its path."""
    from captioner.captioner import Captioner
    from captioner.checkpoint import load_checkpoint
    from captioner.shared.paths import HUGGING_FACE
    from captioner.trust.trust import trust_file
    from captioner_training.evaluation.fit_trust import MIN_PHOTOS, write_trust

    if arguments.photos < MIN_PHOTOS:
        raise ConfigError(f"--photos is {arguments.photos}; it must be at least {MIN_PHOTOS}")
    if not expanded(arguments.checkpoint).exists() and is_hub_name(name := arguments.checkpoint):
        raise ConfigError(
            f"{name}: trust is written beside the checkpoint, so download it first: `hf download "
            f"{name.replace('@', ' --revision ')} --local-dir DIR`, then `captioner trust DIR`"
        )
    # Not from_pretrained, which also reads an existing trust file, which may be damaged.
    machine = {"device": arguments.device, "dtype": arguments.dtype}
    if arguments.checkpoint.startswith(HUGGING_FACE):
        from captioner.huggingface.captioner import HuggingFaceCaptioner

        captioner: Captioner = HuggingFaceCaptioner(arguments.checkpoint, **machine)
    else:
        captioner = Captioner(load_checkpoint(arguments.checkpoint), **machine)
    folders = [expanded(folder) for folder in arguments.data]
    train = _sample(folders, "train", arguments.photos)
    validation = _sample(folders, "val", arguments.photos // 2)
    for split, photos in (("training", train), ("validation", validation)):
        if len(photos) < MIN_PHOTOS:
            raise DataError(
                f"{' '.join(map(str, folders))}: {len(photos)} {split} photos are too few; trust "
                f"needs at least {MIN_PHOTOS}"
            )
    for line in write_trust(captioner, arguments.checkpoint, train, validation):
        print(f"captioner: {line}", file=sys.stderr)
    print(trust_file(arguments.checkpoint))
    return 0


def _sample(folders: Sequence[Path], split: str, count: int) -> list[CaptionedImage]:
    """Draw an equal number of photos from every data set. Every call draws the same photos."""
    from captioner_training.data.reading import read_dataset

    photos: list[CaptionedImage] = []
    for folder in folders:
        images = read_dataset(folder, split=split)
        most = min(-(-count // len(folders)), len(images))
        photos += [images[at] for at in sorted(random.Random(0).sample(range(len(images)), most))]
    return photos
