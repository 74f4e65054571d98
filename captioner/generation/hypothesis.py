"""A finished sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Hypothesis"]


class Hypothesis(NamedTuple):
    """A finished sentence of T words. Tensors are float32 on the CPU.

    tokens: the words, without <end>.
    score: the ranking score: the summed log-probability of words and <end>, divided by their
        number to the power of GenerationConfig.length_penalty.
    log_probabilities: (T + 1,), the log-probabilities of the words and <end>.
    attention: (T, L); None if the decoder has no attention.
    gate: (T,); None if the decoder has no gate.
    heads: (T, H, L); None if there is one head.
    """

    tokens: list[int]
    score: float
    log_probabilities: Tensor
    attention: Tensor | None = None
    gate: Tensor | None = None
    heads: Tensor | None = None
