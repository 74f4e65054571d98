"""A finished sentence."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Hypothesis"]


class Hypothesis(NamedTuple):
    """A finished sentence of T words.

    Tensors are float32 on the CPU, and may be views of tensors of the whole batch.

    tokens: the words, without <end>.
    score: the summed log-probability of words and <end>, divided by (their number)^length_penalty.
        Hypotheses are ranked by it.
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

    def copy(self) -> Hypothesis:
        """Return a copy that does not keep the rest of its batch in memory."""
        return Hypothesis._make(part.clone() if isinstance(part, Tensor) else part for part in self)
