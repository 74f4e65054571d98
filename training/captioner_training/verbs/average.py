"""`captioner average`: the mean of checkpoints that share a start."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from captioner.errors import ConfigError, OutputError

HELP = "Average the weights of checkpoints that went on from the same one (a model soup)."
EXAMPLES = """examples:
  captioner average runs/one/best.safetensors runs/two/best.safetensors --out mean.safetensors
  captioner average bundled runs/own/best.safetensors --shares 1 3 --out mean.safetensors

The mean is as fast as each of them, and often better on photos that none has seen: measure it with
`captioner evaluate --checkpoint`. Checkpoints that did not begin with the same weights have no mean
that means anything."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help="`bundled`, or a file")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="write the mean there"
    )
    parser.add_argument(
        "--shares",
        nargs="+",
        type=float,
        metavar="N",
        help="how much each counts, in any unit; default: all alike",
    )
    parser.add_argument(
        "--version",
        metavar="TEXT",
        help="which training it is, for records; default: as the first's",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the mean, and print its path."""
    from captioner.header import bundled_checkpoint, read_header
    from captioner.vocabulary import is_fit

    shares = _shares(arguments.shares, len(arguments.checkpoints))
    version = arguments.version
    if version is not None and not is_fit(version):
        raise ConfigError(
            f"--version {version!a} has characters that steer a terminal: leave them out"
        )
    paths = [
        bundled_checkpoint() if name == "bundled" else Path(name).expanduser()
        for name in arguments.checkpoints
    ]
    for path in paths:
        read_header(path)
    out = arguments.out.expanduser()
    if out.exists() or out.is_symlink():
        raise OutputError(f"{out} is there already: choose another name, or remove it")
    if not out.parent.is_dir():
        raise OutputError(f"{out} cannot be written: there is no folder {out.parent}")
    from captioner_training.averaging import average_checkpoints  # after all that is refused

    mean = average_checkpoints(paths, shares)
    (mean if version is None else replace(mean, version=version)).save(out)
    print(out)
    return 0


def _shares(shares: Sequence[float] | None, checkpoints: int) -> list[float]:
    """Give each checkpoint its share of the mean; they sum to 1.

    Args:
        shares: one for each, in any unit; None: all alike.
        checkpoints: how many there are.

    Raises:
        ConfigError: fewer than two checkpoints, or shares that are not one positive number each.

    """
    if checkpoints < 2:
        raise ConfigError("one checkpoint is its own mean: name two or more")
    if shares is None:
        return [1 / checkpoints] * checkpoints
    if len(shares) != checkpoints:
        raise ConfigError(
            f"--shares has {len(shares)} for {checkpoints} checkpoints: give each one a share"
        )
    if any(not math.isfinite(share) or share <= 0 for share in shares):
        told = " ".join(f"{share:g}" for share in shares)
        raise ConfigError(f"--shares {told}: each is a number above 0")
    return [share / sum(shares) for share in shares]
