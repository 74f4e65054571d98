"""Score functions: how well a query fits a key.

With q a query, k a key and W learned matrices, the score of a head is

    additive          v . tanh(W_k k + W_q q)           Bahdanau et al. 2015
    multiplicative    (W_q q) . (W_k k)                 Luong et al. 2015, "general"
    dot               q . k, where both are of one length    Luong et al. 2015
    scaled_dot        (W_q q) . (W_k k) / sqrt(A / H)   Vaswani et al. 2017
    none              0: every key counts alike

H heads share the A numbers of W_q q and W_k k: each scores with A / H of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from captioner.attention.score_names import check_score

__all__ = [
    "SCORES",
    "AdditiveScore",
    "NoScore",
    "ProductScore",
    "ScoreFunction",
    "build_score",
    "split_heads",
]


class ScoreFunction(Protocol):
    """How well queries fit keys."""

    heads: int

    def project(self, keys: Tensor) -> Tensor:
        """Turn keys (B, L, D) into projected keys (B, L, A), once for all queries."""

    def __call__(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries (B, K, Q) against projected keys (B, L, A): (B, K, H, L)."""


class AdditiveScore(nn.Module):
    """v . tanh(W_k k + W_q q) (Bahdanau et al. 2015; f_att of Xu et al. 2015, equation 4).

    The sum is that of one matrix over query and key in one vector, W [q; k]: its two halves are
    W_q and W_k, and so the half of the keys need not wait for a query.

    Computed as 2 v . sigmoid(2 (W_k k + W_q q)), which is less by the sum of v, the same for every
    key: the softmax cannot tell, and on a CPU a sigmoid takes a seventh of the time of a tanh.
    """

    def __init__(self, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1) -> None:
        super().__init__()
        self.heads = heads
        self.key = nn.Linear(key_dim, attention_dim)
        self.query = nn.Linear(query_dim, attention_dim, bias=False)  # the key has the bias
        self.score = nn.Linear(attention_dim, 1, bias=False)  # softmax ignores a bias here

    def project(self, keys: Tensor) -> Tensor:
        """Turn keys (B, L, D) into doubled projected keys (B, L, A), float32 or finer."""
        projected = cast(Tensor, self.key(keys))
        return 2 * projected.to(torch.promote_types(projected.dtype, torch.float32))

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries (B, K, Q) against projected keys (B, L, A): (B, K, H, L)."""
        doubled = 2 * cast(Tensor, self.query(query)).to(keys.dtype)
        weights = self.score.weight.squeeze(0).to(keys.dtype)
        # In float32 at least, also under autocast: bfloat16 is coarse between 1/2 and 1.
        with torch.autocast(keys.device.type, enabled=False):
            hidden = torch.sigmoid(keys.unsqueeze(1) + doubled.unsqueeze(2))  # (B, K, L, A)
            if self.heads == 1:
                return 2 * (hidden @ weights).unsqueeze(2)
            # A head scores with its own numbers.
            own = (hidden * weights).view(*hidden.shape[:-1], self.heads, -1).sum(dim=-1)
            return 2 * own.transpose(2, 3)


class ProductScore(nn.Module):
    """Scores that are products of query and key: multiplicative, dot and scaled_dot.

    Args:
        query_dim: Q, the numbers of a query.
        key_dim: D, the numbers of a key.
        attention_dim: A, what both are projected to; None compares them as they are.
        heads: H, between which the A numbers are split.
        scaled: divide by the square root of a head's numbers, so that long vectors do not drive
            the softmax to where it has no slope (Vaswani et al. 2017, section 3.2.1).

    """

    def __init__(
        self,
        *,
        query_dim: int,
        key_dim: int,
        attention_dim: int | None,
        heads: int = 1,
        scaled: bool = False,
    ) -> None:
        super().__init__()
        self.heads = heads
        width = query_dim if attention_dim is None else attention_dim
        self.scale = (width // heads) ** -0.5 if scaled else 1.0
        self.query: nn.Module = nn.Identity()
        self.key: nn.Module = nn.Identity()
        if attention_dim is not None:
            # A bias of the key would add the same to every score of a query.
            self.query = nn.Linear(query_dim, attention_dim, bias=scaled)
            self.key = nn.Linear(key_dim, attention_dim, bias=False)

    def project(self, keys: Tensor) -> Tensor:
        """Turn keys (B, L, D) into projected keys (B, L, A)."""
        return cast(Tensor, self.key(keys))

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries (B, K, Q) against projected keys (B, L, A): (B, K, H, L)."""
        queries = self.project_query(query).to(keys.dtype)
        if self.heads == 1:
            return torch.bmm(queries, keys.transpose(1, 2)).unsqueeze(2)
        # Each head's query with zeros for the parts of the others: without a copy of the keys.
        parts = split_heads(queries, self.heads).transpose(2, 3)
        own = torch.diag_embed(parts, dim1=2, dim2=3).flatten(3)  # (B, K, H, A)
        return torch.bmm(own.flatten(1, 2), keys.transpose(1, 2)).view(*own.shape[:3], -1)

    def project_query(self, query: Tensor) -> Tensor:
        """Turn queries (B, K, Q) into projected and scaled queries (B, K, A)."""
        return cast(Tensor, self.query(query)) * self.scale


def split_heads(numbers: Tensor, heads: int) -> Tensor:
    """Give each head its part of the numbers (..., A): (..., H, A / H)."""
    return numbers.reshape(*numbers.shape[:-1], heads, -1)


class NoScore(nn.Module):
    """Every key counts alike, whatever the query: captioning without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 1

    def project(self, keys: Tensor) -> Tensor:
        """Keep of the keys (B, L, D) only how many there are: (B, L, 0)."""
        return keys[..., :0]

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries (B, K, Q) against projected keys (B, L, 0): zeros (B, K, 1, L)."""
        return query.new_zeros(*query.shape[:2], 1, keys.shape[1])


def _multiplicative(**sizes: int) -> ScoreFunction:
    return ProductScore(**sizes, scaled=False)


def _dot(*, query_dim: int, key_dim: int, heads: int, **_: int) -> ScoreFunction:
    return ProductScore(query_dim=query_dim, key_dim=key_dim, attention_dim=None, heads=heads)


def _scaled_dot(**sizes: int) -> ScoreFunction:
    return ProductScore(**sizes, scaled=True)


def _none(**_: int) -> ScoreFunction:
    return NoScore()


SCORES: dict[str, Callable[..., ScoreFunction]] = {
    "additive": AdditiveScore,
    "multiplicative": _multiplicative,
    "dot": _dot,
    "scaled_dot": _scaled_dot,
    "none": _none,
}
"""The score functions by the name that a decoder's configuration takes."""


def build_score(
    name: str, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1
) -> ScoreFunction:
    """Make a score function.

    Raises:
        ConfigError: no score function has that name, or the sizes do not fit it.

    """
    check_score(
        name, query_dim=query_dim, key_dim=key_dim, attention_dim=attention_dim, heads=heads
    )
    return SCORES[name](
        query_dim=query_dim, key_dim=key_dim, attention_dim=attention_dim, heads=heads
    )
