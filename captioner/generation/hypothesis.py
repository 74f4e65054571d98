"""A finished sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Hypothesis"]


class Hypothesis(NamedTuple):
    """A finished sentence of T words.

    tokens: the words, without <end>.
    score: what a beam ranks sentences by: the log-probability of the words and <end> over their
        number to the power of GenerationConfig.length_penalty.
    log_probabilities: (T + 1,), of the words and <end>.
    attention: (T, L), gate: (T,) and heads: (T, H, L), or None where the decoder has none.

    All are on the CPU, in float32; of an exported model they are arrays of numpy.
    """

    tokens: list[int]
    score: float
    log_probabilities: Tensor
    attention: Tensor | None = None
    gate: Tensor | None = None
    heads: Tensor | None = None
