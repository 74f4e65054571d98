"""`captioner average`: average checkpoints that were trained from the same weights."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from captioner.errors import ConfigError, OutputError
from captioner.shared.paths import checkpoint_file, expanded

HELP = "Average the weights of checkpoints that were trained from the same one (a model soup)."
EXAMPLES = """examples:
  captioner average runs/one/best.safetensors runs/two/best.safetensors --out mean.safetensors
  captioner average bundled runs/more/best.safetensors --shares 1 3 --out mean.safetensors

The average is often better than each of them; measure it with `captioner evaluate --checkpoint`.
All checkpoints must have started from the same weights, and must have the same words."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="CHECKPOINT",
        help="`bundled`, a file, a run folder or USER/MODEL of the Hub")  # fmt: skip
    add("--out", type=Path, required=True, metavar="FILE", help="file to write")
    add("--shares", nargs="+", type=float, metavar="N",
        help="relative weight of each checkpoint; default: equal")  # fmt: skip
    add("--version", metavar="TEXT",
        help="version for records; default: the first checkpoint's")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the average and print its path."""
    from captioner.vocabulary import is_printable
    from captioner_training.averaging import average_checkpoints

    version, out = arguments.version, expanded(arguments.out)
    if version is not None and not (version and is_printable(version)):
        raise ConfigError(f"--version {version!a} is empty or not plain text: use a number like 2")
    if os.path.lexists(out):
        raise OutputError(f"{out} exists: choose another name, or remove it")
    paths = [checkpoint_file(name) for name in arguments.checkpoints]
    mean = average_checkpoints(paths, arguments.shares)
    (mean if version is None else replace(mean, version=version)).save(out)
    print(out)
    return 0
