"""`captioner average`: the mean of checkpoints that share a start."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from captioner.errors import ConfigError, OutputError
from captioner.paths import checkpoint_file, expanded

HELP = "Average the weights of checkpoints that went on from the same one (a model soup)."
EXAMPLES = """examples:
  captioner average runs/one/best.safetensors runs/two/best.safetensors --out mean.safetensors
  captioner average bundled runs/more/best.safetensors --shares 1 3 --out mean.safetensors

The mean is as fast as each of them, and often better on photos that none has seen: measure it with
`captioner evaluate --checkpoint`. Checkpoints that did not begin with the same weights have no mean
that means anything; those that have learned new words have none with those that have not."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="`bundled`, a file, a run folder or USER/MODEL of the Hub",
    )
    add("--out", type=Path, required=True, metavar="FILE", help="write the mean there")
    add("--shares", nargs="+", type=float, metavar="N",
        help="how much each counts, in any unit; default: all alike")  # fmt: skip
    add("--version", metavar="TEXT",
        help="which training it is, for records; default: as the first's")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the mean, and print its path."""
    from captioner.paths import bundled_checkpoint
    from captioner.vocabulary import is_fit
    from captioner_training.averaging import average_checkpoints

    version, out = arguments.version, expanded(arguments.out)
    if version is not None and not (version and is_fit(version)):
        raise ConfigError(f"--version {version!a} is empty or not plain text: use a number, say 2")
    if os.path.lexists(out):
        raise OutputError(f"{out} is there already: choose another name, or remove it")
    paths = [
        bundled_checkpoint() if name == "bundled" else checkpoint_file(name)
        for name in arguments.checkpoints
    ]
    mean = average_checkpoints(paths, arguments.shares)
    (mean if version is None else replace(mean, version=version)).save(out)
    print(out)
    return 0
