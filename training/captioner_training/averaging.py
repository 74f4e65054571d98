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
from torch import Tensor

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import CheckpointFormatError

__all__ = ["average_checkpoints"]


def average_checkpoints(paths: Sequence[Path], shares: Sequence[float]) -> Checkpoint:
    """Take the weighted mean of checkpoints, tensor by tensor.

    Args:
        paths: of the checkpoints, which `check_alike` has let pass. The mean has the name,
            vocabulary, transform and generation of the first, and no scores: nobody has measured
            it.
        shares: one for each; they sum to 1.

    Raises:
        CheckpointError: one cannot be read, or has weights that are NaN or infinite.

    """
    first = load_checkpoint(paths[0])
    mean = _floats(first, paths[0])
    with torch.no_grad():
        for tensor in mean.values():
            tensor.mul_(shares[0])
        for path, share in zip(paths[1:], shares[1:], strict=True):
            weights = _floats(load_checkpoint(path), path)
            for name, tensor in mean.items():
                tensor.add_(weights[name], alpha=share)
    return replace(first, metrics={})


def _floats(checkpoint: Checkpoint, path: Path) -> dict[str, Tensor]:
    """Give the tensors that have a mean, without a copy."""
    floats = {
        name: tensor
        for name, tensor in checkpoint.model.state_dict().items()
        if tensor.is_floating_point()
    }
    if odd := [name for name, tensor in floats.items() if not tensor.isfinite().all()]:
        raise CheckpointFormatError(
            f"{path} has NaN or infinity in {odd[0]}: its training went wrong, or it is damaged; "
            "leave it out"
        )
    return floats
