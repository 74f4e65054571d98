"""Averaging checkpoints that share a start (Wortsman et al. 2022, "Model soups").

Weights of runs that went on from the same weights lie in one basin of the loss, and their mean is
as fast as each of them and often better on photos that none has seen. Runs that began with other
random numbers have their units in another order, and their mean is noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import CheckpointFormatError, CheckpointMismatchError, ConfigError

__all__ = ["average_checkpoints"]

# Of the cosine of the decoders' matrices: 0.99 after six epochs from one start, all weights trained
# (the bundled versions 1 and 2), and 0.00 between trained decoders that began apart.
_RELATED = 0.5


def average_checkpoints(paths: Sequence[Path], shares: Sequence[float] | None = None) -> Checkpoint:
    """Take the mean of checkpoints, tensor by tensor, weighted by `shares` in any unit.

    It has the name, vocabulary, transform and generation of the first, and no scores: nobody has
    measured it.

    Raises:
        ConfigError: fewer than two checkpoints, or shares that are not one positive number each.
        CheckpointError: one cannot be read, has weights that are NaN or infinite, differs from the
            first in more than dropout, or began with other random numbers.
    """
    parts = _check_shares(shares, len(paths))
    first = load_checkpoint(paths[0])
    ours = _floats(first, paths[0])
    mean = {name: parts[0] * tensor for name, tensor in ours.items()}
    for path, share in zip(paths[1:], parts[1:], strict=True):
        other = load_checkpoint(path)
        theirs = _floats(other, path)
        problems = "; ".join(_differences(first, other))
        if not problems and (near := _cosine(ours, theirs)) < _RELATED:
            problems = (
                "they began with other random numbers, and only noise lies between their decoders "
                f"(the cosine of their weights is {near:.2f})"
            )
        if problems:
            raise CheckpointMismatchError(
                f"{path} and {paths[0]} have no mean: {problems}. Average checkpoints that went on "
                "from the same one, with the same words"
            )
        for name, tensor in mean.items():
            tensor.add_(theirs[name], alpha=share)
    first.model.load_state_dict(mean, strict=False)  # whole numbers have no mean, and stay
    return replace(first, metrics={})


def _check_shares(shares: Sequence[float] | None, count: int) -> list[float]:
    """Give each of so many checkpoints its share of the mean; they sum to 1."""
    if count < 2:
        raise ConfigError("one checkpoint is its own mean: name two or more")
    shares = [1.0] * count if shares is None else shares
    typed = " ".join(f"{share:g}" for share in shares)
    if len(shares) != count:
        raise ConfigError(f"--shares {typed}: give each of the {count} checkpoints one")
    if not min(shares) > 0 or not math.isfinite(sum(shares)):
        raise ConfigError(f"--shares {typed}: each is a number above 0")
    return [share / sum(shares) for share in shares]


def _differences(first: Checkpoint, other: Checkpoint) -> Iterator[str]:
    """Name every setting in which a checkpoint differs from the first; dropout may differ."""
    ours, theirs = _settings(first), _settings(other)
    for name, value in ours.items():
        if theirs[name] != value:
            yield f"{name} is {theirs[name]!r} there and {value!r} here"
    words, others = first.vocabulary.ordinary_words, other.vocabulary.ordinary_words
    if words != others:
        apart = len({*words} ^ {*others})
        yield f"their words differ ({apart:,})" if apart else "their words have another order"


def _settings(checkpoint: Checkpoint) -> dict[str, object]:
    vocabulary, config = checkpoint.vocabulary, checkpoint.model.config
    found: dict[str, object] = {
        name: getattr(vocabulary, name) for name in ("tokenizer", "lowercase", "styles")
    }
    for part, settings in (
        ("encoder", config.encoder),
        ("decoder", replace(config.decoder, dropout=0.0)),
        ("transform", checkpoint.transform),
    ):
        found |= {f"{part}.{name}": value for name, value in asdict(settings).items()}
    return found


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
    tensors = checkpoint.model.state_dict().items()
    floats = {name: tensor for name, tensor in tensors if tensor.is_floating_point()}
    if odd := [name for name, tensor in floats.items() if not tensor.isfinite().all()]:
        raise CheckpointFormatError(
            f"{path} has NaN or infinity in {odd[0]}: its training went wrong, or it is damaged; "
            "leave it out"
        )
    return floats
