"""`captioner familiarity`: write down what a checkpoint's training photos are like."""

from __future__ import annotations

import argparse
from pathlib import Path

from captioner.device import add_machine_arguments
from captioner.errors import ConfigError, DataError
from captioner.paths import expanded

HELP = "Let a checkpoint tell photos like those that it has learned from from others."
EXAMPLES = """examples:
  captioner familiarity runs/coco/best.safetensors ~/coco
  captioner familiarity runs/own/best.safetensors ~/mine ~/more --photos 2000

The statistics of the training photos are written beside the checkpoint (beside best.safetensors:
best.familiarity.safetensors), and the path is printed. From then on records have
`familiarity`, 0 to 1: the share of validation photos that are less like the training photos than
this one."""

_FEWEST = 100  # training photos: of fewer the statistics are noise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument(
        "data",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="data sets of the training: their splits train and val are read",
    )
    parser.add_argument(
        "--photos",
        type=int,
        default=3000,
        metavar="N",
        help="photos drawn from train, half as many from val; default: 3000",
    )
    add_machine_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Encode photos, and write their statistics."""
    from captioner.checkpoint import load_checkpoint
    from captioner.familiarity import Familiarity, digest_encoder, familiarity_file
    from captioner.predictor import Captioner
    from captioner_training.evaluation.familiarity import pooled_grids, some_photos

    if arguments.photos < _FEWEST:
        raise ConfigError(
            f"--photos {arguments.photos} is too few to say what photos are like: {_FEWEST}"
        )
    checkpoint = load_checkpoint(arguments.checkpoint)
    folders = [expanded(folder) for folder in arguments.data]
    train = some_photos(folders, "train", arguments.photos)
    if len(train) < _FEWEST:
        raise DataError(
            f"{' '.join(map(str, folders))}: {len(train)} training photos are too few to say what "
            f"photos are like: {_FEWEST}"
        )
    # Not from_pretrained: it reads the statistics that are there, which may be damaged.
    captioner = Captioner(checkpoint, device=arguments.device, dtype=arguments.dtype)
    validation = some_photos(folders, "val", arguments.photos // 2)
    seen, kept_back = (pooled_grids(captioner, photos) for photos in (train, validation))
    path = familiarity_file(arguments.checkpoint)
    encoder = digest_encoder(expanded(arguments.checkpoint))
    Familiarity.fit(seen, kept_back, encoder=encoder).save(path)
    print(path)
    return 0
