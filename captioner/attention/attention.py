"""Attention: queries, keys and values of any spaces and numbers (Xu et al. 2015, section 4.2).

A score function says how well a query (the hidden state, say) fits each key (a cell of the grid).
The softmax of the scores is the attention weights, and the weighted mean of the values the context.
What depends on the keys and values alone is computed once, by `project`; what is left for a query
is small, and the hypotheses of an image share its keys and values without a copy.

A mask says which keys a query may see: True is visible. A query that may see none has weights of
zero, and a context of zero.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.attention.scores import SCORES, ProductScore, build_score, check_heads, split_heads
from captioner.errors import ConfigError

__all__ = [
    "Attention",
    "ProjectedGrid",
    "attend_fused",
    "average",
    "average_folded",
    "causal",
    "fold",
    "full",
    "local",
    "maps",
    "masked_softmax",
]


class ProjectedGrid(NamedTuple):
    """What queries need of B images.

    keys: (B, L, A); values: (B, L, V).
    """

    keys: Tensor
    values: Tensor


def average(weights: Tensor, values: Tensor) -> Tensor:
    """Take each head's weighted mean of its own part of the values (equation 13).

    Args:
        weights: (B, K, H, L).
        values: (B, L, V), of which head h has the h-th V / H numbers.

    Returns:
        The context (B, K, V): the heads' means side by side.
    """
    weights = weights.to(values.dtype)
    heads = weights.shape[2]
    if heads == 1:
        return torch.bmm(weights.squeeze(2), values)
    # Each head averages the parts of all, and its own is taken: without a copy of the values.
    every = torch.bmm(weights.flatten(1, 2), values)  # (B, K * H, V)
    own = every.view(*weights.shape[:3], heads, -1).diagonal(dim1=2, dim2=3)  # (B, K, V / H, H)
    return own.transpose(2, 3).flatten(2)


def fold(values: Tensor, matrix: Tensor, *, heads: int) -> Tensor:
    """Apply to values, once, the matrix that would follow the context of every query.

    Args:
        values: (B, L, V).
        matrix: (F, V).
        heads: H; each has V / H numbers of the values, and so its own columns of the matrix.

    Returns:
        (B, L, H, F), what `average_folded` takes.
    """
    if heads == 1:
        return F.linear(values, matrix).unsqueeze(2)
    parts = zip(values.chunk(heads, dim=-1), matrix.chunk(heads, dim=-1), strict=True)
    return torch.stack([F.linear(part, columns) for part, columns in parts], dim=2)


def average_folded(weights: Tensor, folded: Tensor) -> Tensor:
    """Take the context as `average` does, with the matrix applied to it already.

    Args:
        weights: (B, K, H, L).
        folded: (B, L, H, F).

    Returns:
        (B, K, F): the sum of what the heads add.
    """
    rows = weights.transpose(2, 3).flatten(2).to(folded.dtype)  # (B, K, L * H)
    return torch.bmm(rows, folded.flatten(1, 2))


def attend_fused(
    queries: Tensor, keys: Tensor, values: Tensor, *, heads: int, mask: Tensor | None = None
) -> Tensor:
    """Average values by products of queries and keys, with PyTorch's fused attention.

    Args:
        queries: (B, K, A), projected and scaled.
        keys: (B, L, A).
        values: (B, L, V).
        heads: H, which share the numbers of each.
        mask: (K, L) or (B, K, L), True where a query may see a key, or numbers that are added to
            its scores; None: everywhere.

    Returns:
        The context (B, K, V).
    """
    queries, keys, values = (
        split_heads(part.to(keys.dtype), heads).transpose(1, 2) for part in (queries, keys, values)
    )
    mask = None if mask is None else mask.unsqueeze(-3)
    context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=1.0)
    return context.transpose(1, 2).flatten(2)


def maps(weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Give the mean (..., L) of the heads' weights (..., H, L), and these where H is not 1."""
    if weights.shape[-2] == 1:
        return weights.squeeze(-2), None
    return weights.mean(dim=-2), weights


class Attention(nn.Module):
    """Attention with a score function chosen by name, and any number of heads.

    Args:
        score: a name in captioner.attention.scores.SCORES.
        query_dim: Q, the numbers of a query.
        key_dim: D, the numbers of a key.
        attention_dim: A, what queries and keys are projected to where the score projects.
        value_dim: V, what values are projected to; None takes them as they are, as the paper does.
        heads: H. Each scores with A / H numbers and averages V / H numbers.
        value_bias: whether the projection of the values adds a bias.
        input_dim: the numbers of a value before its projection; None: the keys are the values too.

    A score that does not project, as `dot`, compares the query with the projected values, unless
    there are values besides the keys: so Luong et al. compare two hidden states.

    Raises ConfigError: no such score function, or sizes that do not fit it.
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
        entering = key_dim if input_dim is None else input_dim
        self.value_dim = entering if value_dim is None else value_dim
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
            self.value = nn.Linear(entering, value_dim, bias=value_bias)

    def project(self, keys: Tensor, values: Tensor | None = None) -> ProjectedGrid:
        """Project keys (B, L, D) and values (B, L, ...) once, for all queries.

        Args:
            keys: the cells of a grid, the states of a sequence, ...
            values: what is averaged in their place; None: the keys themselves.
        """
        projected = cast(Tensor, self.value(keys if values is None else values))
        return ProjectedGrid(
            self.score.project(projected if self.keys_are_values else keys), projected
        )

    def forward(
        self, query: Tensor, grid: ProjectedGrid, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend with queries (B, K, Q).

        Args:
            query: any number K of them.
            grid: what `project` made.
            mask: (K, L) or (B, K, L), True where a query may see a key; None: everywhere.

        Returns:
            The context (B, K, V), and the attention weights (B, K, H, L), float32.
        """
        weights: Tensor = self.weigh(query, grid.keys, mask)
        return average(weights, grid.values), weights

    def weigh(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Give the attention weights (B, K, H, L) alone, of queries over projected keys."""
        scores = self.score(query, keys)
        return masked_softmax(scores, None if mask is None else mask.unsqueeze(-2))  # equation 5

    def attend(self, query: Tensor, grid: ProjectedGrid, mask: Tensor | None = None) -> Tensor:
        """Do as `forward` does where nobody asks for the weights: the context (B, K, V) alone.

        A product's weights are then never written to memory (PyTorch's fused attention), where a
        head's keys are as long as its values: otherwise PyTorch has nothing fused on a CPU.
        """
        if not isinstance(self.score, ProductScore) or grid.keys.shape[-1] != grid.values.shape[-1]:
            return average(self.weigh(query, grid.keys, mask), grid.values)
        queries = self.score.project_query(query)
        return attend_fused(queries, grid.keys, grid.values, heads=self.score.heads, mask=mask)


def full(queries: int, keys: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Let every query see every key: (queries, keys)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device)


def causal(queries: int, keys: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Let position i see the positions up to i: (queries, keys).

    The last query stands at the last key: with fewer queries than keys, the queries are the newest
    positions, as when words are generated one by one.

    Raises ConfigError: there are more queries than keys, so that the first would see nothing.
    """
    return _distance(queries, keys, device) >= 0


def local(queries: int, keys: int, *, delta: int, device: torch.device | str = "cpu") -> Tensor:
    """Let position i see the positions j with |i - j| <= delta: (queries, keys).

    Queries stand at the last positions, as in `causal`.

    Raises ConfigError: delta is negative, or there are more queries than keys.
    """
    if delta < 0:
        raise ConfigError(f"delta {delta} of a local mask is negative: no position sees itself")
    return _distance(queries, keys, device).abs() <= delta


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Turn scores into weights that sum to 1 over the visible keys and are 0 elsewhere.

    A row that may see nothing has weights of zero, where a softmax alone would give NaN.

    Args:
        scores: (..., L).
        mask: of bools that broadcast to the scores; None sees everything.

    Returns:
        The weights (..., L), float32 or finer.
    """
    # Half precision would make the weights of a long grid miss a sum of 1 visibly.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return scores.softmax(dim=-1)
    # The lowest number, since a whole row of -inf has no softmax; such a row is zeroed after it.
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights * mask


def _distance(queries: int, keys: int, device: torch.device | str) -> Tensor:
    """How far each key lies behind each query: (queries, keys)."""
    if queries > keys:
        raise ConfigError(f"{queries} queries do not stand at the ends of {keys} keys")
    places = torch.arange(keys, device=device)
    return places[keys - queries :, None] - places
