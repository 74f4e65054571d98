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

from abc import ABC, abstractmethod
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from captioner.errors import ConfigError

__all__ = [
    "SCORES",
    "AdditiveScore",
    "DotScore",
    "MultiplicativeScore",
    "NoScore",
    "ProductScore",
    "ScaledDotScore",
    "ScoreFunction",
    "build_score",
    "check_heads",
    "split_heads",
]


class ScoreFunction(nn.Module, ABC):
    """How well queries fit keys.

    Args:
        query_dim: Q, the numbers of a query.
        key_dim: D, the numbers of a key.
        attention_dim: A, what both are projected to, where the score projects.
        heads: H.

    Raises ConfigError: the sizes do not fit the score.
    """

    projects: ClassVar[bool] = True
    """False: queries and keys are compared as they are."""

    def __init__(self, *, heads: int = 1, **_sizes: int) -> None:
        super().__init__()
        self.heads = heads

    @abstractmethod
    def project(self, keys: Tensor) -> Tensor:
        """Turn keys (B, L, D) into projected keys (B, L, A), once for all queries."""

    @abstractmethod
    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries (B, K, Q) against projected keys (B, L, A): (B, K, H, L)."""


class AdditiveScore(ScoreFunction):
    """v . tanh(W_k k + W_q q) (Bahdanau et al. 2015; f_att of Xu et al. 2015, equation 4).

    The sum is that of one matrix over query and key in one vector, W [q; k]: its two halves are
    W_q and W_k, and so the half of the keys need not wait for a query.

    Computed as 2 v . sigmoid(2 (W_k k + W_q q)), which is less by the sum of v, the same for every
    key: the softmax cannot tell, and on a CPU a sigmoid takes a seventh of the time of a tanh.
    """

    def __init__(self, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1) -> None:
        super().__init__(heads=heads)
        check_heads(heads, attention_dim=attention_dim)
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


class ProductScore(ScoreFunction):
    """A product of query and key, both brought to one width."""

    scale = 1.0
    query: nn.Module
    key: nn.Module

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


class MultiplicativeScore(ProductScore):
    """(W_q q) . (W_k k) (Luong et al. 2015, "general")."""

    query_bias: ClassVar[bool] = False

    def __init__(self, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1) -> None:
        super().__init__(heads=heads)
        check_heads(heads, attention_dim=attention_dim)
        # A bias of the key would add the same to every score of a query.
        self.query = nn.Linear(query_dim, attention_dim, bias=self.query_bias)
        self.key = nn.Linear(key_dim, attention_dim, bias=False)


class ScaledDotScore(MultiplicativeScore):
    """(W_q q) . (W_k k) / sqrt(A / H) (Vaswani et al. 2017, section 3.2.1).

    Divided so, long vectors do not drive the softmax to where it has no slope.
    """

    query_bias = True

    def __init__(self, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1) -> None:
        super().__init__(
            query_dim=query_dim, key_dim=key_dim, attention_dim=attention_dim, heads=heads
        )
        self.scale = (attention_dim // heads) ** -0.5


class DotScore(ProductScore):
    """q . k, where both are of one length (Luong et al. 2015)."""

    projects = False

    def __init__(self, *, query_dim: int, key_dim: int, heads: int = 1, **_sizes: int) -> None:
        super().__init__(heads=heads)
        if query_dim != key_dim:
            raise ConfigError(
                f"score 'dot' multiplies a query of {query_dim} numbers with a key of {key_dim}: "
                "make the two equal, or choose 'multiplicative' or 'scaled_dot', which project them"
            )
        check_heads(heads, query_dim=query_dim)
        self.query, self.key = nn.Identity(), nn.Identity()


class NoScore(ScoreFunction):
    """Every key counts alike, whatever the query: captioning without attention."""

    def __init__(self, *, heads: int = 1, **_sizes: int) -> None:
        super().__init__(heads=heads)
        if heads > 1:
            raise ConfigError(
                f"heads {heads} with score 'none': all of them would see the same mean; set heads "
                "to 1, or choose another score"
            )

    def project(self, keys: Tensor) -> Tensor:
        """Keep of the keys (B, L, D) only how many there are: (B, L, 0)."""
        return keys[..., :0]

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries (B, K, Q) against projected keys (B, L, 0): zeros (B, K, 1, L)."""
        return query.new_zeros(*query.shape[:2], 1, keys.shape[1])


SCORES: dict[str, type[ScoreFunction]] = {
    "additive": AdditiveScore,
    "multiplicative": MultiplicativeScore,
    "dot": DotScore,
    "scaled_dot": ScaledDotScore,
    "none": NoScore,
}
"""The score functions by the name that a decoder's configuration takes."""


def build_score(
    name: str, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1
) -> ScoreFunction:
    """Make a score function.

    Raises ConfigError: no score function has that name, or the sizes do not fit it.
    """
    if name not in SCORES:
        raise ConfigError(f"score {name!r} is not known; known are {', '.join(SCORES)}")
    return SCORES[name](
        query_dim=query_dim, key_dim=key_dim, attention_dim=attention_dim, heads=heads
    )


def check_heads(heads: int, **widths: int) -> None:
    """Refuse heads that do not divide widths, by their names, into equal parts.

    Raises ConfigError: they do not; the detail names the numbers near that would.
    """
    if heads < 1:
        raise ConfigError(f"heads {heads} is not positive")
    for what, width in widths.items():
        if width % heads:
            fit = [number for number in range(1, width + 1) if width % number == 0]
            near = [number for number in fit if number < heads][-1:]
            near += [number for number in fit if number > heads][:1]
            raise ConfigError(
                f"heads {heads} do not divide {what} {width} into equal parts: "
                f"{' or '.join(map(str, near))} would"
            )


def split_heads(numbers: Tensor, heads: int) -> Tensor:
    """Give each head its part of the numbers (..., A): (..., H, A / H)."""
    return numbers.reshape(*numbers.shape[:-1], heads, -1)
