"""What every decoder of a model is: steps for generation, one pass for training.

`Decoder` says it, `WordDecoder` and `RecurrentDecoder` bring what the decoders here share, and
`build_decoder` makes the one that a configuration names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.attention.attention import Attention
from captioner.attention.positions import GRID_SIDE, Positions
from captioner.decoders.config import DECODERS, DecoderConfig
from captioner.decoders.layers import grid_layers
from captioner.decoders.state import State, StepOutput

__all__ = [
    "Decoder",
    "DecoderOutput",
    "RecurrentDecoder",
    "WordDecoder",
    "advance",
    "build_decoder",
]


class DecoderOutput(NamedTuple):
    """A teacher-forced pass over T tokens.

    deep: (B, K, T, m), what `Decoder.logits` turns into scores of words.
    attention: (B, K, T, L); None where the decoder does not attend.
    gate: (B, K, T); None where the decoder has none.
    heads: (B, K, T, H, L), of which attention is the mean; None where there is but one.
    """

    deep: Tensor
    attention: Tensor | None = None
    gate: Tensor | None = None
    heads: Tensor | None = None


class Decoder(nn.Module, ABC):
    """Scores the next word of a caption, given a grid and the words before.

    A subclass is listed in captioner.decoders.config.DECODERS, and takes `config`, `grid_dim` and
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

    def word_attention(self, features: Tensor, tokens: Tensor) -> Tensor | None:  # noqa: ARG002
        """Show how tokens (B, K, T), read as by `forward`, look at each other: (B, K, H, T, T).

        Rows look, columns are looked at. None, as by default, where they do not.
        """
        return None

    def tabulate(self) -> None:
        """Work out once what does not depend on the photo; afterwards no weight may change."""


class WordDecoder(Decoder):
    """A decoder whose deep output layer has the matrix of the embedded words (tied weights).

    Its subclasses say in `tabulate` which of their matrices words meet first and last: what these
    make of each word is worked out once, which spares every step their products.
    """

    def __init__(self, config: DecoderConfig, *, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary_size, config.embedding_dim)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.dropout = nn.Dropout(config.dropout)
        # The matrix also scores words: rows of unit variance would start with huge logits.
        nn.init.normal_(self.embedding.weight, std=config.embedding_dim**-0.5)
        self.words_in: Tensor | None
        self.words_out: Tensor | None
        self.words_bias: Tensor | None
        for name in ("words_in", "words_out", "words_bias"):  # of `tabulate`, in no checkpoint
            self.register_buffer(name, None, persistent=False)

    def logits(self, deep: Tensor) -> Tensor:
        """Score every word from the deep output (..., m): (..., words)."""
        return F.linear(deep, self.embedding.weight, self.output_bias)

    @torch.no_grad()
    def _tabulate(self, *, first: nn.Linear, last: nn.Linear | None = None) -> None:
        """Work out what each word is behind the first matrix, and before the last.

        Args:
            first: what embedded words (..., m) meet.
            last: what makes the deep output (..., m), where nothing else adds to it.
        """
        words = self.embedding.weight
        self.words_in = first(words)
        if last is not None:
            self.words_out = words @ last.weight
            self.words_bias = torch.addmv(self.output_bias, words, last.bias)

    def _embed(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.embedding(tokens)))

    def _enter(self, tokens: Tensor, first: nn.Linear) -> Tensor:
        """Bring the tokens (B, K) of one step through the first matrix (E, m): (B, K, E)."""
        if self.words_in is None:
            return cast(Tensor, first(self._embed(tokens)))
        return F.embedding(tokens, self.words_in)

    def _leave(self, hidden: Tensor, last: nn.Linear) -> Tensor:
        """Score the words from what the last matrix takes (B, K, n), of one step."""
        if self.words_out is None:
            return self.logits(self.dropout(last(hidden)))
        return F.linear(hidden, self.words_out, self.words_bias)


class RecurrentDecoder(WordDecoder):
    """A decoder whose hidden state (B, K, n) looks at the grid, a step at a time."""

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size=vocabulary_size)
        self.grid_layers, self.grid_dim, positions = grid_layers(config, grid_dim=grid_dim)
        self.positions = Positions(
            kind=positions, dim=self.grid_dim, axes=2, length=GRID_SIDE,
            scaled=config.scaled_positions,
        )  # fmt: skip
        self.attention = Attention(
            score=config.score,
            key_dim=self.positions.output_dim,
            query_dim=config.hidden_dim,
            attention_dim=config.attention_dim,
            value_dim=config.value_dim,
            heads=config.heads,
        )


def advance(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Advance an LSTM cell by a step (Xu et al. 2015, equations 1 to 3).

    The gates' inputs come worked out, so that each decoder can add them up from its own parts.

    Args:
        gates: (..., 4n), what enters input, forget and output gate and the candidate.
        cell: (..., n), the cell state before.

    Returns:
        Hidden state and cell state (..., n).
    """
    input_, forget, output, candidate = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + input_.sigmoid() * candidate.tanh()  # equation 2
    return output.sigmoid() * cell.tanh(), cell  # equation 3


def build_decoder(config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> Decoder:
    """Make the decoder that the configuration names, with random weights.

    Args:
        config: the kind and its free sizes.
        grid_dim: D, the features of a grid cell: the encoder decides it.
        vocabulary_size: words and special tokens.

    Raises ConfigError: its sizes cannot work together.
    """
    module, name = DECODERS[config.kind].split(":")
    made = getattr(import_module(module), name)
    return cast(Decoder, made(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size))
