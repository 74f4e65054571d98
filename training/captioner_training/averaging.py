"""Averaging checkpoints that share a start (Wortsman et al. 2022, "Model soups").

Weights of runs that went on from the same weights lie in one basin of the loss, and their mean is
as fast as each of them and often better on photos that none has seen. Runs that began with other
random numbers have their units in another order, and their mean is noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import CheckpointFormatError, CheckpointMismatchError

__all__ = ["average_checkpoints"]

# Of the cosine of the decoders' matrices: 0.99 after six epochs from one start, all weights trained
# (the bundled versions 1 and 2), and 0.00 between trained decoders that began apart.
_RELATED = 0.5


def average_checkpoints(paths: Sequence[Path], shares: Sequence[float]) -> Checkpoint:
    """Take the weighted mean of checkpoints, tensor by tensor.

    Args:
        paths: of the checkpoints, which `check_alike` has let pass. The mean has the name,
            vocabulary, transform and generation of the first, and no scores: nobody has measured
            it.
        shares: one for each; they sum to 1.

    Raises:
        CheckpointError: one cannot be read, has weights that are NaN or infinite, or began with
            other random numbers than the first.

    """
    first = load_checkpoint(paths[0])
    ours = _floats(first, paths[0])
    mean = {name: shares[0] * tensor for name, tensor in ours.items()}
    for path, share in zip(paths[1:], shares[1:], strict=True):
        theirs = _floats(load_checkpoint(path), path)
        if (near := _cosine(ours, theirs)) < _RELATED:
            raise CheckpointMismatchError(
                f"{path} and {paths[0]} have no mean: their decoders are as good as unrelated "
                f"(the cosine of their weights is {near:.2f}). Average checkpoints that went on "
                "from the same one; those that began with other random numbers have only noise "
                "between them"
            )
        for name, tensor in mean.items():
            tensor.add_(theirs[name], alpha=share)
    first.model.load_state_dict(mean, strict=False)  # whole numbers have no mean, and stay
    return replace(first, metrics={})


def _cosine(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Say how alike two models' decoders are: the cosine of all their matrices as one vector."""
    names = [name for name, one in ours.items() if name.startswith("decoder.") and one.ndim > 1]
    one, other = (
        torch.cat([weights[name].flatten().double() for name in names])
        for weights in (ours, theirs)
    )
    return float(F.cosine_similarity(one, other, dim=0))


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
