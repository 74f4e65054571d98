"""Masks: which keys a query may see. True is visible; every query must see at least one key."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.errors import ConfigError

__all__ = ["causal", "full", "local", "masked_softmax"]


def full(queries: int, keys: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Let every query see every key: (queries, keys)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device)


def causal(queries: int, keys: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Let position i see the positions up to i: (queries, keys).

    The last query stands at the last key: with fewer queries than keys, the queries are the newest
    positions, as when words are generated one by one.

    Raises:
        ConfigError: there are more queries than keys, so that the first would see nothing.

    """
    return _distance(queries, keys, device) >= 0


def local(queries: int, keys: int, *, delta: int, device: torch.device | str = "cpu") -> Tensor:
    """Let position i see the positions j with |i - j| <= delta: (queries, keys).

    Queries stand at the last positions, as in `causal`.

    Raises:
        ConfigError: delta is negative, or there are more queries than keys.

    """
    if delta < 0:
        raise ConfigError(f"delta {delta} of a local mask is negative: no position sees itself")
    return _distance(queries, keys, device).abs() <= delta


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Turn scores into weights that sum to 1 over the visible keys and are 0 elsewhere.

    Args:
        scores: (..., L).
        mask: of bools that broadcast to the scores; None sees everything.

    Returns:
        The weights (..., L), float32 or finer.

    """
    # Half precision would make the weights of a long grid miss a sum of 1 visibly.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1)


def _distance(queries: int, keys: int, device: torch.device | str) -> Tensor:
    """How far each key lies behind each query: (queries, keys)."""
    if queries > keys:
        raise ConfigError(f"{queries} queries do not stand at the ends of {keys} keys")
    places = torch.arange(keys, device=device)
    return places[keys - queries :, None] - places
