"""Soft attention over the grid (Xu et al. 2015, equations 4 to 6 and section 4.2).

A score function says how well a query (the hidden state) fits each key (a cell of the grid). The
softmax of the scores is the attention weights, and the weighted mean of the values the context.
What depends on the grid alone is computed once an image, by `project`; what is left for a step is
small, and the hypotheses of an image share its keys and values without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from captioner.errors import ConfigError

__all__ = ["SCORES", "AdditiveScore", "Attention", "ProjectedGrid", "ScoreFunction"]


class ProjectedGrid(NamedTuple):
    """What a step needs of B images.

    keys: (B, L, A); values: (B, L, V).
    """

    keys: Tensor
    values: Tensor

    def take(self, rows: Tensor) -> ProjectedGrid:
        """Keep these images alone."""
        return ProjectedGrid(self.keys[rows], self.values[rows])


class ScoreFunction(Protocol):
    """How well queries fit keys. Any module of this shape can be registered in SCORES."""

    def project(self, features: Tensor) -> Tensor:
        """Turn features (B, L, D) into keys (B, L, A), once an image."""

    def __call__(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries (B, K, H) against keys (B, L, A): (B, K, L)."""


class AdditiveScore(nn.Module):
    """v . tanh(W_k a + W_q h) (Bahdanau et al. 2015; f_att of Xu et al. 2015, equation 4).

    Computed as 2 v . sigmoid(2 (W_k a + W_q h)), which is less by the sum of v, the same for every
    cell: the softmax cannot tell, and on a CPU a sigmoid takes a seventh of the time of a tanh.
    """

    def __init__(self, *, grid_dim: int, query_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.key = nn.Linear(grid_dim, attention_dim)
        self.query = nn.Linear(query_dim, attention_dim, bias=False)  # the key has the bias
        self.score = nn.Linear(attention_dim, 1, bias=False)  # softmax ignores a bias here

    def project(self, features: Tensor) -> Tensor:
        """Turn features (B, L, D) into doubled keys (B, L, A), float32."""
        return 2 * cast(Tensor, self.key(features)).float()

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries (B, K, H) against keys (B, L, A): (B, K, L)."""
        doubled = 2 * cast(Tensor, self.query(query)).to(keys.dtype)
        weights = self.score.weight.squeeze(0).to(keys.dtype)
        # In float32 also under autocast: bfloat16 is coarse between 1/2 and 1.
        with torch.autocast(keys.device.type, enabled=False):
            return cast(Tensor, _SigmoidScore.apply(keys, doubled, weights))


class _SigmoidScore(torch.autograd.Function):
    """2 v . sigmoid(keys + queries), with a slope that works in place.

    The B x K x L x A numbers are much of what training a decoder reads and writes; automatic
    differentiation fills new tensors of that size, and under autocast keeps a rounded copy.
    """

    @staticmethod
    def forward(ctx: Any, keys: Tensor, queries: Tensor, weights: Tensor) -> Tensor:
        hidden = (keys.unsqueeze(1) + queries.unsqueeze(2)).sigmoid_()
        ctx.save_for_backward(hidden, weights)
        return 2 * (hidden @ weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weights = ctx.saved_tensors
        images, hypotheses, cells, width = hidden.shape
        with torch.autocast(hidden.device.type, enabled=False):
            to_weights = 2 * (slope.reshape(1, -1) @ hidden.view(-1, width)).squeeze(0)
            # sigmoid' = s - s^2, in place: a second pass backward is refused, and never needed.
            inner = hidden.addcmul_(hidden, hidden, value=-1)
            flat = inner.view(-1, cells, width)
            queries = torch.bmm(slope.reshape(-1, 1, cells), flat).view(images, hypotheses, width)
            keys = inner.mul_(slope.unsqueeze(-1)).sum(dim=1)
        return 2 * weights * keys, 2 * weights * queries, to_weights


SCORES: dict[str, Callable[..., ScoreFunction]] = {"additive": AdditiveScore}
"""The score functions by the name that DecoderConfig.score takes."""


class Attention(nn.Module):
    """Soft attention with a score function chosen by name.

    Args:
        score: a name in SCORES.
        grid_dim: D, the features of a cell.
        query_dim: H, the size of the hidden state.
        attention_dim: A, the size of a key.
        value_dim: V, the size of a value; None takes the features themselves, as the paper does.

    Raises:
        ConfigError: no score function has that name.

    """

    def __init__(
        self,
        *,
        score: str,
        grid_dim: int,
        query_dim: int,
        attention_dim: int,
        value_dim: int | None,
    ) -> None:
        super().__init__()
        if score not in SCORES:
            raise ConfigError(f"score {score!r} is not known; known are {', '.join(SCORES)}")
        self.score = SCORES[score](
            grid_dim=grid_dim, query_dim=query_dim, attention_dim=attention_dim
        )
        self.value = nn.Identity() if value_dim is None else nn.Linear(grid_dim, value_dim)

    def project(self, features: Tensor) -> ProjectedGrid:
        """Project the features (B, L, D) of a grid once, for every step and hypothesis."""
        return ProjectedGrid(self.score.project(features), self.value(features))

    def forward(self, query: Tensor, grid: ProjectedGrid) -> tuple[Tensor, Tensor]:
        """Attend with queries (B, K, H): context (B, K, V) and attention weights (B, K, L)."""
        scores = self.score(query, grid.keys)
        # Half precision would make the weights of a long grid miss a sum of 1 visibly.
        weights = scores.float().softmax(dim=-1)  # equation 5
        context = torch.bmm(weights.to(grid.values.dtype), grid.values)  # equation 13
        return context, weights
