"""Averaging checkpoints that share a start (Wortsman et al. 2022, "Model soups").

Weights of runs that went on from the same weights lie in one basin of the loss, and their mean is
as fast as each of them and often better on photos that none has seen. Runs that began with other
random numbers have their units in another order, and their mean is noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.checkpoint import Checkpoint, load_checkpoint, odd_header, read_header
from captioner.errors import CheckpointFormatError, CheckpointMismatchError, ConfigError
from captioner_training.checkpoint_settings import checkpoint_settings

__all__ = ["average_checkpoints", "check_alike", "check_shares"]

# Of the cosine of the decoders' matrices: 0.99 after six epochs from one start, all weights trained
# (the bundled versions 1 and 2), and 0.00 between trained decoders that began apart.
_RELATED = 0.5


def check_shares(shares: Sequence[float] | None, checkpoints: int) -> list[float]:
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
    told = " ".join(f"{share:g}" for share in shares)
    if any(not math.isfinite(share) or share <= 0 for share in shares):
        raise ConfigError(f"--shares {told}: each is a number above 0")
    largest = max(shares)  # first: the sum of huge ones is infinite
    total = sum(share / largest for share in shares)
    parts = [share / largest / total for share in shares]
    if min(parts) < 1e-6:
        raise ConfigError(
            f"--shares {told}: one is less than a millionth of the mean, and would be lost: leave "
            "that checkpoint out"
        )
    return parts


def check_alike(paths: Sequence[Path]) -> None:
    """Refuse checkpoints whose headers say that they cannot have gone on from one.

    Dropout may differ, which no weight depends on, and so may how captions are made.

    Raises:
        CheckpointError: one cannot be read, or differs from the first.

    """
    headers = [(path, read_header(path)) for path in paths]
    first = headers[0]
    for other in headers[1:]:
        if differences := list(_differences(first, other)):
            raise CheckpointMismatchError(
                f"{other[0]} and {first[0]} have no mean: {'; '.join(differences)}. Average "
                "checkpoints that went on from the same one, with the same words"
            )


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


def _differences(
    first: tuple[Path, Mapping[str, Any]], other: tuple[Path, Mapping[str, Any]]
) -> Iterator[str]:
    """Name every setting in which a checkpoint differs from the first."""
    ours, theirs = _settings(*first), _settings(*other)
    for name, value in ours.items():
        if theirs[name] != value:
            yield f"{name} is {theirs[name]!r} there and {value!r} here"
    words, others = set(first[1]["vocabulary"]), set(other[1]["vocabulary"])
    if first[1]["vocabulary"] != other[1]["vocabulary"]:
        yield (
            f"of the words of either, {len(words ^ others):,} are not in the other"
            if words != others
            else "their words have another order"
        )


def _settings(path: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """Lay out what must be the same, but for the words."""
    parts = checkpoint_settings(path, header, "encoder", "decoder", "transform")
    words = header.get("vocabulary")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise odd_header(path, TypeError("its vocabulary is no list of words"))
    flat = {f"{part}.{name}": value for part in parts for name, value in parts[part].items()}
    known = {"tokenizer": header.get("tokenizer", "words"), "styles": header.get("styles", [])}
    return {**known, **flat}
