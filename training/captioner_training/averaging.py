"""Average checkpoints that were trained from the same weights (Wortsman et al. 2022, "soups").

The average is often better than every one of the checkpoints. Checkpoints from different initial
weights cannot be averaged, because their hidden units have different orders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import CheckpointFormatError, CheckpointMismatchError, ConfigError
from captioner_training.initialization import model_settings

# Least cosine of the decoders' matrices. It is near 1 for runs from the same weights, else near 0.
_RELATED = 0.5


def average_checkpoints(paths: Sequence[Path], shares: Sequence[float] | None = None) -> Checkpoint:
    """Return the average of checkpoints, with the settings of the first and without scores.

    Args:
        paths: two or more checkpoints.
        shares: the weight of each checkpoint, normalized to a sum of 1; default: equal.

    Raises:
        ConfigError: there are fewer than two checkpoints, or shares are not one positive number for
            each.
        CheckpointError: a checkpoint cannot be read, is not finite, or does not fit the first.
    """
    if len(paths) < 2:
        raise ConfigError("there is only one checkpoint to average: name two or more")
    shares = [1.0] * len(paths) if shares is None else shares
    if len(shares) != len(paths) or not min(shares) > 0 or not math.isfinite(sum(shares)):
        typed = " ".join(f"{share:g}" for share in shares)
        raise ConfigError(
            f"--shares {typed}: {len(paths)} checkpoints need {len(paths)} numbers above 0"
        )
    parts = [share / sum(shares) for share in shares]
    first = load_checkpoint(paths[0])
    ours = _floats(first, paths[0])
    mean = {name: parts[0] * tensor for name, tensor in ours.items()}
    for path, share in zip(paths[1:], parts[1:], strict=True):
        other = load_checkpoint(path)
        theirs = _floats(other, path)
        problems = "; ".join(_differences(first, other))
        if not problems and (near := _cosine(ours, theirs)) < _RELATED:
            problems = f"they started from different weights (cosine of decoders {near:.2f})"
        if problems:
            raise CheckpointMismatchError(
                f"{path} and {paths[0]} cannot be averaged: {problems}. Use checkpoints with the "
                "same words that started from the same weights"
            )
        for name, tensor in mean.items():
            tensor.add_(theirs[name], alpha=share)
    first.model.load_state_dict(mean, strict=False)  # integer tensors stay those of the first
    return replace(first, metrics={})


def _differences(first: Checkpoint, other: Checkpoint) -> Iterator[str]:
    """Yield each setting in which two checkpoints differ, except dropout."""
    ours, theirs = (
        model_settings(one.model.config, one.transform, one.vocabulary)
        | {"styles": one.vocabulary.styles}
        for one in (first, other)
    )
    for name, value in ours.items():
        if theirs[name] != value:
            yield f"{name} is {theirs[name]!r} and {value!r}"
    our_words, their_words = first.vocabulary.ordinary_words, other.vocabulary.ordinary_words
    if our_words != their_words:
        count = len({*our_words} ^ {*their_words})
        yield f"{count:,} words differ" if count else "their words have different orders"


def _cosine(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    names = [name for name in ours if name.startswith("decoder.") and ours[name].ndim > 1]
    first, second = (
        torch.cat([weights[name].flatten().double() for name in names])
        for weights in (ours, theirs)
    )
    return float(F.cosine_similarity(first, second, dim=0))


def _floats(checkpoint: Checkpoint, path: Path) -> dict[str, Tensor]:
    """Return the floating-point tensors, without a copy. Raises CheckpointFormatError."""
    tensors = checkpoint.model.state_dict().items()
    floats = {name: tensor for name, tensor in tensors if tensor.is_floating_point()}
    if bad := [name for name, tensor in floats.items() if not tensor.isfinite().all()]:
        raise CheckpointFormatError(f"{path} has NaN or infinity in {bad[0]}: leave it out")
    return floats
