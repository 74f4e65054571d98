"""`captioner trust`: write down when a checkpoint is right, and what its photos are like."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from captioner.device import add_machine_arguments
from captioner.errors import ConfigError, DataError
from captioner.paths import expanded

HELP = "Let a checkpoint say how far its words can be trusted, and which photos are new to it."
EXAMPLES = """examples:
  captioner trust runs/coco/best.safetensors ~/coco
  captioner trust runs/own/best.safetensors ~/mine ~/more --photos 2000

What is found is written beside the checkpoint (beside best.safetensors: best.trust.safetensors),
and the path is printed. From then on records have `trust`, the probability that a word or the whole
caption is right, and `familiarity`, the share of validation photos that are less like the training
photos than this one. It is learned from photos of the training and from every second one of
validation; how well it does on the others is said on standard error."""

_FEWEST = 100  # photos: of fewer what is learned is noise


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
        default=20000,
        metavar="N",
        help="at most so many of train, and half as many of val; default: 20000",
    )
    add_machine_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Encode photos, caption those of validation, and write what is learned of them."""
    from captioner.checkpoint import load_checkpoint
    from captioner.familiarity import Familiarity
    from captioner.predictor import Captioner
    from captioner.trust import digest_weights, trust_file
    from captioner_training.evaluation.familiarity import pooled_grids, some_photos
    from captioner_training.evaluation.measures import CaptionedSplit
    from captioner_training.evaluation.trust import fit_sight, fit_trust, measure_trust

    if arguments.photos < _FEWEST:
        raise ConfigError(f"--photos {arguments.photos} is too few to learn from: {_FEWEST}")
    checkpoint = load_checkpoint(arguments.checkpoint)
    folders = [expanded(folder) for folder in arguments.data]
    train = some_photos(folders, "train", arguments.photos)
    validation = some_photos(folders, "val", arguments.photos // 2)
    for split, photos in (("training", train), ("validation", validation)):
        if len(photos) < _FEWEST:
            raise DataError(
                f"{' '.join(map(str, folders))}: {len(photos)} {split} photos are too few to learn "
                f"from: {_FEWEST}"
            )
    # Not from_pretrained: it reads the file that is there, which may be damaged.
    captioner = Captioner(checkpoint, device=arguments.device, dtype=arguments.dtype)
    seen = pooled_grids(captioner, train)
    made = CaptionedSplit(captioner, validation)
    trust = fit_trust(
        made.captioned[::2],
        made.pooled[::2],
        sight=fit_sight(seen, train, captioner.vocabulary),
        familiarity=Familiarity.fit(seen, made.pooled),
        weights=digest_weights(expanded(arguments.checkpoint)),
    )
    others = made.captioned[1::2]
    judged = trust.judge(made.pooled[1::2], [[one.hypothesis] for one in others])
    found = measure_trust(others, [one for (one,) in judged])
    for kind in ("words", "captions"):
        _tell(kind, found[kind])
    trust.save(path := trust_file(arguments.checkpoint))
    print(path)
    return 0


def _tell(kind: str, part: object) -> None:
    from captioner_training.pages.figures import part_of

    if (known := part_of({kind: part}, kind)) is not None:
        print(
            f"captioner: {kind} of the other photos: {known.text('right')} % are right, "
            f"AUROC {known.text('auroc', 3)}, calibration error {known.text('error')} points",
            file=sys.stderr,
        )
