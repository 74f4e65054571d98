"""Averaging checkpoints that share a start (Wortsman et al. 2022, "Model soups").

Weights of runs that went on from the same weights lie in one basin of the loss, and their mean is
as fast as each of them and often better on photos that none has seen. Runs that began with other
random numbers have their units in another order, and their mean is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import CheckpointMismatchError

__all__ = ["average_checkpoints"]


def average_checkpoints(paths: Sequence[Path], shares: Sequence[float]) -> Checkpoint:
    """Take the weighted mean of checkpoints, tensor by tensor.

    Args:
        paths: of the checkpoints. The mean has the name, vocabulary, transform and generation of
            the first, and no scores: nobody has measured it.
        shares: one for each; they sum to 1.

    Raises:
        CheckpointError: one cannot be read, or its shape or words are not those of the first.

    """
    first = load_checkpoint(paths[0])
    mean = first.model.state_dict()
    numbers = [name for name, tensor in mean.items() if tensor.is_floating_point()]
    with torch.no_grad():
        for name in numbers:
            mean[name].mul_(shares[0])
        for path, share in zip(paths[1:], shares[1:], strict=True):
            other = load_checkpoint(path)
            _refuse_unlike(first, other, paths[0], path)
            weights = other.model.state_dict()
            for name in numbers:
                mean[name].add_(weights[name], alpha=share)
    return replace(first, metrics={})


def _refuse_unlike(first: Checkpoint, other: Checkpoint, path: Path, other_path: Path) -> None:
    unlike = {
        "architecture": first.model.config != other.model.config,
        "vocabulary": first.vocabulary.words != other.vocabulary.words,
        "transform": first.transform != other.transform,
    }
    if names := [name for name, differs in unlike.items() if differs]:
        raise CheckpointMismatchError(
            f"{other_path} has another {' and another '.join(names)} than {path}: only checkpoints "
            "that went on from the same one have a mean that means anything"
        )
