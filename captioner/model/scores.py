"""Score functions: how well a query matches a key.

With a query q, a key k and learned matrices W, the score of a head is

    additive          v . tanh(W_k k + W_q q)           Bahdanau et al. 2015
    multiplicative    (W_q q) . (W_k k)                 Luong et al. 2015, "general"
    dot               q . k, both of the same size      Luong et al. 2015
    scaled_dot        (W_q q) . (W_k k) / sqrt(A / H)   Vaswani et al. 2017
    none              0, so all keys have equal weight

W_q q and W_k k have A numbers. With H heads, head h scores with the h-th block of A / H numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from captioner.errors import ConfigError


class ScoreFunction(nn.Module, ABC):
    """Scores queries against keys.

    Subclasses define `project`, `compare` and `query`. Decoders call these, not `forward`.

    Args:
        query_dim: Q, the size of a query.
        key_dim: D, the size of a key.
        attention_dim: A, the size that both are projected to, if the score projects.
        heads: H.

    Raises ConfigError: the sizes do not fit the score.
    """

    projects: ClassVar[bool] = True
    """Whether queries and keys are projected before they are compared."""
    query: nn.Module
    """Projects queries (B, K, Q) to (B, K, A). nn.Identity() does not project."""

    def __init__(self, *, heads: int = 1, **_sizes: int) -> None:
        super().__init__()
        self.heads = heads

    @abstractmethod
    def project(self, keys: Tensor) -> Tensor:
        """Project keys (B, L, D) to (B, L, A), once for all queries."""

    @abstractmethod
    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score projected queries (B, K, A) against projected keys (B, L, A): (B, K, H, L)."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score queries (B, K, Q) against projected keys (B, L, A): (B, K, H, L)."""
        return self.compare(self.query(query), keys)


class AdditiveScore(ScoreFunction):
    """v . tanh(W_k k + W_q q) (Bahdanau et al. 2015; f_att of Xu et al. 2015, equation 4).

    Computed as 2 v . sigmoid(2 (W_k k + W_q q)). Since tanh(x) = 2 sigmoid(2x) - 1, this differs by
    the sum of v, which is the same for every key and drops out of the softmax. On a CPU a sigmoid
    is several times faster than a tanh.
    """

    def __init__(self, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1) -> None:
        super().__init__(heads=heads)
        check_heads(heads, attention_dim=attention_dim)
        self.key = nn.Linear(key_dim, attention_dim)
        self.query = nn.Linear(query_dim, attention_dim, bias=False)  # the key has the bias
        self.score = nn.Linear(attention_dim, 1, bias=False)  # softmax ignores a bias here

    def project(self, keys: Tensor) -> Tensor:
        """Return 2 W_k k: (B, L, A), float32 or float64."""
        projected = cast(Tensor, self.key(keys))
        return 2 * projected.to(torch.promote_types(projected.dtype, torch.float32))

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score queries against keys; see `ScoreFunction.compare`."""
        queries = queries.to(keys.dtype).unsqueeze(2)
        weights = self.score.weight.squeeze(0).to(keys.dtype)
        # In float32 even under autocast: bfloat16 is too coarse between 1/2 and 1.
        with torch.autocast(keys.device.type, enabled=False):
            hidden = torch.sigmoid(torch.add(keys.unsqueeze(1), queries, alpha=2))  # (B, K, L, A)
            if self.heads == 1:
                return 2 * (hidden @ weights).unsqueeze(2)
            own = (hidden * weights).view(*hidden.shape[:-1], self.heads, -1).sum(dim=-1)
            return 2 * own.transpose(2, 3)


class ProductScore(ScoreFunction):
    """A dot product of query and key, both of the same size."""

    scale = 1.0
    key: nn.Module

    def project(self, keys: Tensor) -> Tensor:
        """Project keys (B, L, D) to (B, L, A)."""
        return cast(Tensor, self.key(keys))

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Score queries against keys; see `ScoreFunction.compare`."""
        queries = (queries * self.scale).to(keys.dtype)
        if self.heads == 1:
            return torch.bmm(queries, keys.transpose(1, 2)).unsqueeze(2)
        # One query per head, zero outside the head's block, so that the keys are not copied.
        parts = split_heads(queries, self.heads).transpose(2, 3)
        own = torch.diag_embed(parts, dim1=2, dim2=3).flatten(3)  # (B, K, H, A)
        return torch.bmm(own.flatten(1, 2), keys.transpose(1, 2)).view(*own.shape[:3], -1)


class MultiplicativeScore(ProductScore):
    """(W_q q) . (W_k k) (Luong et al. 2015, "general")."""

    query_bias: ClassVar[bool] = False

    def __init__(self, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1) -> None:
        super().__init__(heads=heads)
        check_heads(heads, attention_dim=attention_dim)
        # A bias of the key would only add a constant to all scores of a query.
        self.query = nn.Linear(query_dim, attention_dim, bias=self.query_bias)
        self.key = nn.Linear(key_dim, attention_dim, bias=False)


class ScaledDotScore(MultiplicativeScore):
    """(W_q q) . (W_k k) / sqrt(A / H) (Vaswani et al. 2017, section 3.2.1).

    Without the division, the scores of large vectors saturate the softmax.
    """

    query_bias = True

    def __init__(self, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1) -> None:
        super().__init__(
            query_dim=query_dim, key_dim=key_dim, attention_dim=attention_dim, heads=heads
        )
        self.scale = (attention_dim // heads) ** -0.5


class DotScore(ProductScore):
    """q . k, both of the same size (Luong et al. 2015)."""

    projects = False

    def __init__(self, *, query_dim: int, key_dim: int, heads: int = 1, **_sizes: int) -> None:
        super().__init__(heads=heads)
        if query_dim != key_dim:
            raise ConfigError(
                f"score 'dot' needs queries and keys of the same size, not {query_dim} and "
                f"{key_dim}: make the two equal, or choose 'multiplicative' or 'scaled_dot'"
            )
        check_heads(heads, query_dim=query_dim)
        self.query, self.key = nn.Identity(), nn.Identity()


class NoScore(ScoreFunction):
    """The same score for every key: captioning without attention."""

    def __init__(self, *, heads: int = 1, **_sizes: int) -> None:
        super().__init__(heads=heads)
        self.query = nn.Identity()
        if heads > 1:
            raise ConfigError(
                f"heads is {heads} with score 'none', which needs no more than one: set heads to "
                "1, or choose another score"
            )

    def project(self, keys: Tensor) -> Tensor:
        """Return an empty tensor (B, L, 0), which keeps the number of keys."""
        return keys[..., :0]

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return zeros (B, K, 1, L)."""
        return queries.new_zeros(*queries.shape[:2], 1, keys.shape[1])


SCORES: dict[str, type[ScoreFunction]] = {
    "additive": AdditiveScore,
    "multiplicative": MultiplicativeScore,
    "dot": DotScore,
    "scaled_dot": ScaledDotScore,
    "none": NoScore,
}
"""The score functions by their name in a decoder's configuration."""


def build_score(
    name: str, *, query_dim: int, key_dim: int, attention_dim: int, heads: int = 1
) -> ScoreFunction:
    """Make a score function.

    Raises ConfigError: unknown name, sizes that do not fit the score, or a score of your own whose
    constructor takes other arguments.
    """
    if name not in SCORES:
        raise ConfigError(f"there is no score {name!r}: choose from {', '.join(SCORES)}")
    sizes = {"query_dim": query_dim, "key_dim": key_dim, "attention_dim": attention_dim}
    try:
        return SCORES[name](**sizes, heads=heads)
    except TypeError as error:
        raise ConfigError(
            f"score {name!r} cannot be used ({type(error).__name__}: {error}): see ScoreFunction"
        ) from error


def check_heads(heads: int, **widths: int) -> None:
    """Raise ConfigError unless every width, passed by name, is divisible by the number of heads."""
    if heads < 1:
        raise ConfigError(f"heads is {heads}; it must be at least 1")
    for name, width in widths.items():
        if width % heads:
            raise ConfigError(
                f"heads is {heads}, which does not divide {name} {width}: use a divisor of {width}"
            )


def split_heads(numbers: Tensor, heads: int) -> Tensor:
    """Split (..., A) into one block per head: (..., H, A / H)."""
    return numbers.reshape(*numbers.shape[:-1], heads, -1)
