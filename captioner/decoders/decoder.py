"""What every decoder of a model is: steps for generation, one pass for training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from captioner.decoders.state import State, StepOutput

__all__ = ["Decoder", "DecoderOutput"]


class DecoderOutput(NamedTuple):
    """A teacher-forced pass over T tokens.

    deep: (B, K, T, m), what `Decoder.logits` turns into scores of words.
    attention: (B, K, T, L); None where the decoder does not attend.
    gate: (B, K, T); None where the decoder has none.
    """

    deep: Tensor
    attention: Tensor | None = None
    gate: Tensor | None = None


class Decoder(nn.Module, ABC):
    """Scores the next word of a caption, given a grid and the words before.

    A subclass is listed in captioner.decoders.kinds, and takes `config`, `grid_dim` and
    `vocabulary_size`.
    """

    @abstractmethod
    def start(self, features: Tensor) -> State:
        """Begin one hypothesis (K = 1) for each of the grids (B, L, D)."""

    @abstractmethod
    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""

    @abstractmethod
    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: read the tokens (B, K, T) of K captions of each image's grid (B, L, D).

        The output at t is for the token that follows tokens[..., t].
        """

    @abstractmethod
    def logits(self, deep: Tensor) -> Tensor:
        """Score every word from the deep output (..., m): (..., words)."""

    def tabulate(self) -> None:
        """Work out once, for use, what does not depend on the photo. Nothing, where not told."""
