"""Which checkpoints have a mean, and the share of each in it; told without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.errors import CheckpointMismatchError, ConfigError
from captioner.header import odd_header, read_header
from captioner_training.checkpoint_settings import checkpoint_settings

__all__ = ["check_alike", "check_shares"]


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
