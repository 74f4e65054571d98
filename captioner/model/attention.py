"""Attention over any keys and values (Xu et al. 2015, section 4.2).

A score function compares a query, such as the decoder's hidden state, with each key, such as a
cell of the grid. The softmax of the scores gives the attention weights (equation 5). The mean of
the values with these weights is the context (equation 13).

`Attention.project` computes once per image what depends only on keys and values.

A mask is True where a query may see a key. A query that may see no key has weights and context 0.

Shapes: B images, K queries, L keys, H heads; A is the size of a projected query or key, V the size
of a projected value.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.errors import ConfigError
from captioner.model.scores import SCORES, ProductScore, build_score, check_heads, split_heads


class ProjectedGrid(NamedTuple):
    """Projected keys (B, L, A) and values (B, L, V) of B images."""

    keys: Tensor
    values: Tensor


def average(weights: Tensor, values: Tensor) -> Tensor:
    """Return the context (B, K, V): the weighted mean of the values (equation 13).

    Weights are (B, K, H, L), values (B, L, V). Head h averages the h-th block of V / H numbers.
    """
    weights = weights.to(values.dtype)
    heads = weights.shape[2]
    if heads == 1:
        return torch.bmm(weights.squeeze(2), values)
    # Each head averages all blocks, and the diagonal selects its own, so values are not copied.
    every = torch.bmm(weights.flatten(1, 2), values)  # (B, K * H, V)
    own = every.view(*weights.shape[:3], heads, -1).diagonal(dim1=2, dim2=3)  # (B, K, V / H, H)
    return own.transpose(2, 3).flatten(2)


def attend_fused(
    queries: Tensor, keys: Tensor, values: Tensor, *, heads: int, mask: Tensor | None = None
) -> Tensor:
    """Return the context (B, K, V) of product scores, with PyTorch's fused attention.

    Queries (B, K, A) are projected and scaled; keys are (B, L, A), values (B, L, V). A mask (K, L)
    or (B, K, L) is True where a query may see a key, or has floats that are added to the scores.
    """
    queries, keys, values = (
        split_heads(part.to(keys.dtype), heads).transpose(1, 2) for part in (queries, keys, values)
    )
    mask = None if mask is None else mask.unsqueeze(-3)
    context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=1.0)
    return context.transpose(1, 2).flatten(2)


def maps(weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the mean (..., L) of weights (..., H, L), and the weights or None if H is 1."""
    if weights.shape[-2] == 1:
        return weights.squeeze(-2), None
    return weights.mean(dim=-2), weights


class Attention(nn.Module):
    """Attention with any score function and number of heads.

    Args:
        score: a name in captioner.model.scores.SCORES.
        query_dim, key_dim: Q and D, the sizes of a query and a key.
        attention_dim: A, the size of projected queries and keys, if the score projects.
        value_dim: V, the size of projected values. None: no projection, as in the paper.
        heads: H. Each scores with A / H numbers and averages V / H numbers.
        value_bias: whether the projection of the values has a bias.
        input_dim: the size of a value before its projection. None: the keys are the values too.

    A score without projections, such as `dot`, compares the query with the projected values, unless
    `input_dim` is given. Luong et al. compare two hidden states in this way.

    Raises ConfigError: unknown score function, or sizes that do not fit it.
    """

    def __init__(
        self,
        *,
        score: str,
        query_dim: int,
        key_dim: int,
        attention_dim: int,
        value_dim: int | None = None,
        heads: int = 1,
        value_bias: bool = True,
        input_dim: int | None = None,
    ) -> None:
        super().__init__()
        input_size = key_dim if input_dim is None else input_dim
        self.value_dim = input_size if value_dim is None else value_dim
        raw = score in SCORES and not SCORES[score].projects
        self.keys_are_values = raw and input_dim is None
        self.score = build_score(
            score,
            query_dim=query_dim,
            key_dim=self.value_dim if self.keys_are_values else key_dim,
            attention_dim=attention_dim,
            heads=heads,
        )
        check_heads(heads, value_dim=self.value_dim)
        self.value: nn.Module = nn.Identity()
        if value_dim is not None:
            self.value = nn.Linear(input_size, value_dim, bias=value_bias)

    def project(self, keys: Tensor, values: Tensor | None = None) -> ProjectedGrid:
        """Project keys (B, L, D) and values (B, L, input_dim), by default the keys."""
        projected = cast(Tensor, self.value(keys if values is None else values))
        keys = self.score.project(projected if self.keys_are_values else keys)
        return ProjectedGrid(keys, projected)

    def forward(
        self, query: Tensor, grid: ProjectedGrid, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the context (B, K, V) and the attention weights (B, K, H, L), float32.

        Args:
            query: (B, K, Q).
            grid: from `project`.
            mask: (K, L) or (B, K, L), True where a query may see a key. None: every query sees
                every key.
        """
        weights: Tensor = self.weigh(query, grid.keys, mask)
        return average(weights, grid.values), weights

    def weigh(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the attention weights (B, K, H, L) of queries (B, K, Q) over projected keys."""
        scores = self.score.compare(self.score.query(query), keys)
        return masked_softmax(scores, None if mask is None else mask.unsqueeze(-2))  # equation 5

    def attend(self, query: Tensor, grid: ProjectedGrid, mask: Tensor | None = None) -> Tensor:
        """Return the context (B, K, V) only; arguments as for `forward`.

        Uses PyTorch's fused attention, which stores no weights, for product scores with keys and
        values of the same size.
        """
        score, same_size = self.score, grid.keys.shape[-1] == grid.values.shape[-1]
        if same_size and type(score).compare is ProductScore.compare:
            queries = score.query(query) * cast(ProductScore, score).scale
            return attend_fused(queries, grid.keys, grid.values, heads=score.heads, mask=mask)
        return average(self.weigh(query, grid.keys, mask), grid.values)


def full(queries: int, keys: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Return a mask (queries, keys) where every query sees every key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device)


def causal(queries: int, keys: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Return a mask (queries, keys) where position i sees the positions up to i.

    Queries are the last positions of the keys, as when words are generated one by one.

    Raises ConfigError: there are more queries than keys.
    """
    return _distance(queries, keys, device) >= 0


def local(queries: int, keys: int, *, delta: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a mask (queries, keys) where position i sees the positions j with |i - j| <= delta.

    Queries are the last positions of the keys, as in `causal`.

    Raises ConfigError: delta is negative, or there are more queries than keys.
    """
    if delta < 0:
        raise ConfigError(f"delta is {delta}; it must be 0 or more")
    return _distance(queries, keys, device).abs() <= delta


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the softmax of scores over the visible keys; weights are 0 elsewhere.

    Scores and weights are (..., L); the weights are float32 or float64. A mask broadcasts to the
    scores. A row without a visible key has weights of 0, not NaN.
    """
    # In half precision the weights of a large grid would not sum to 1.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return scores.softmax(dim=-1)
    # The lowest number instead of -inf: the softmax of a row of -inf is NaN.
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights * mask


def _distance(queries: int, keys: int, device: torch.device | str) -> Tensor:
    """Return the position of each query minus the position of each key: (queries, keys)."""
    if queries > keys:
        raise ConfigError(
            f"there are {queries} queries but {keys} keys; there must be at least as many keys"
        )
    positions = torch.arange(keys, device=device)
    return positions[keys - queries :, None] - positions
