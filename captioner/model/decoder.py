"""The interface of a decoder: single steps for generation, one pass for training.

`WordDecoder` and `RecurrentDecoder` contain the code that decoders share.

Shapes: B images, K hypotheses or captions per image, T tokens, L grid cells, H heads; m is the size
of a word embedding, n the size of a hidden state. K is the number of captions of an image in
training, the beam size in beam search, and the number of samples in sampling. Tensors of an image
(B, L, ...) are shared by its hypotheses without a copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.model.attention import Attention, maps
from captioner.model.config import DECODERS, DecoderConfig
from captioner.model.layers import grid_layers
from captioner.model.positions import GRID_SIDE, Positions


class State(NamedTuple):
    """The state of B images with K hypotheses each.

    image: tensors (B, L, ...), with a row for each grid cell, so that cells can be replaced.
    hypothesis: tensors (B, K, ...).

    The names of the tensors are private to the decoder.
    """

    image: dict[str, Tensor]
    hypothesis: dict[str, Tensor]

    def expand(self, hypotheses: int) -> State:
        """Repeat each image's only hypothesis K times, without a copy."""
        parts = self.hypothesis.items()
        wide = {name: part.expand(-1, hypotheses, *part.shape[2:]) for name, part in parts}
        return State(self.image, wide)

    def select(self, parents: Tensor) -> State:
        """Replace hypothesis k of image b by hypothesis parents[b, k]; parents are (B, K)."""
        if not self.hypothesis:
            return self
        count = next(iter(self.hypothesis.values())).shape[1]
        first = torch.arange(parents.shape[0], device=parents.device).unsqueeze(1) * count
        rows = (first + parents).flatten()
        hypothesis = {
            name: part.flatten(0, 1).index_select(0, rows).view(*parents.shape, *part.shape[2:])
            for name, part in self.hypothesis.items()
        }
        return State(self.image, hypothesis)

    def take(self, rows: Tensor) -> State:
        """Return the state of these images only."""
        return State._make({name: part[rows] for name, part in parts.items()} for parts in self)


class StepOutput(NamedTuple):
    """One step of B images with K hypotheses each.

    logits: (B, K, words).
    state: the state after the step.
    attention: (B, K, L), sums to 1; None if the decoder has no attention.
    gate: (B, K), 0 to 1; None if the decoder has no gate.
    heads: (B, K, H, L), the attention of each head; None if there is one head.
    """

    logits: Tensor
    state: State
    attention: Tensor | None = None
    gate: Tensor | None = None
    heads: Tensor | None = None


class StepDecoder(Protocol):
    """The part of a decoder that generation needs."""

    def start(self, features: Tensor) -> State:
        """Return the state of one empty hypothesis (K = 1) for each of the grids (B, L, D)."""

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""


class DecoderOutput(NamedTuple):
    """The output of a teacher-forced pass over T tokens.

    deep: (B, K, T, m), the input of `Decoder.logits`.
    attention: (B, K, T, L); None if the decoder has no attention.
    gate: (B, K, T); None if the decoder has no gate.
    heads: (B, K, T, H, L), whose mean is `attention`; None if there is one head.
    """

    deep: Tensor
    attention: Tensor | None = None
    gate: Tensor | None = None
    heads: Tensor | None = None


class Decoder(nn.Module, ABC):
    """Scores the next word of a caption, given a grid and the words so far.

    Subclasses are listed in captioner.model.config.DECODERS. Their constructors take `config`,
    `grid_dim` and `vocabulary_size`.
    """

    @abstractmethod
    def start(self, features: Tensor) -> State:
        """Return the state of one empty hypothesis (K = 1) for each of the grids (B, L, D)."""

    @abstractmethod
    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""

    @abstractmethod
    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Read the tokens (B, K, T) of K captions for each of the grids (B, L, D).

        The output at position t scores the successor of tokens[..., t].
        """

    @abstractmethod
    def logits(self, deep: Tensor) -> Tensor:
        """Return logits (..., words) of the deep output (..., m)."""


class WordDecoder(Decoder):
    """A decoder whose output layer has the matrix of the word embeddings (tied weights)."""

    def __init__(self, config: DecoderConfig, *, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary_size, config.embedding_dim)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.dropout = nn.Dropout(config.dropout)
        # The matrix also computes the logits. Rows of unit variance would make them too large.
        nn.init.normal_(self.embedding.weight, std=config.embedding_dim**-0.5)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (..., m) of tokens (...)."""
        return cast(Tensor, self.dropout(self.embedding(tokens)))

    def logits(self, deep: Tensor) -> Tensor:
        """Return logits (..., words) of the deep output (..., m)."""
        return F.linear(deep, self.embedding.weight, self.output_bias)


class Recurrence(NamedTuple):
    """What scores the next word of K hypotheses of B images, besides the last word.

    hidden: (B, K, n).
    weights: (B, K, H, L), the attention.
    context: (B, K, V); None if it does not score the next word itself.
    gate: (B, K); None if the decoder has no gate.
    """

    hidden: Tensor
    weights: Tensor
    context: Tensor | None = None
    gate: Tensor | None = None


class RecurrentDecoder(WordDecoder):
    """A decoder whose hidden state (B, K, n) attends over the grid at every step.

    Subclasses define `start` and three parts of a step: `read`, `recur` and `deep`.
    """

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

    @abstractmethod
    def read(self, words: Tensor) -> Tensor:
        """Return what depends on the embedded words (..., m) alone; in training, of all at once."""

    @abstractmethod
    def recur(self, words: Tensor, state: State) -> tuple[Recurrence, State]:
        """Attend over the grid and advance the state, given the result of `read`."""

    @abstractmethod
    def deep(self, words: Tensor, hidden: Tensor, context: Tensor | None) -> Tensor:
        """Return the deep output (..., m) of embedded words, hidden states and contexts."""

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""
        words = self.embed(tokens)
        part, state = self.recur(self.read(words), state)
        attention, heads = maps(part.weights)
        logits = self.logits(self.deep(words, part.hidden, part.context))
        return StepOutput(logits, state, attention, part.gate, heads)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Read whole captions, word by word; see `Decoder.forward`."""
        state = self.start(features).expand(tokens.shape[1])
        words = self.embed(tokens)
        parts = []
        for word in self.read(words).unbind(dim=2):
            part, state = self.recur(word, state)
            parts.append(part)
        columns: Any = zip(*parts, strict=True)
        whole = Recurrence._make(
            None if column[0] is None else torch.stack(column, dim=2) for column in columns
        )
        attention, heads = maps(whole.weights)
        deep = self.deep(words, whole.hidden, whole.context)
        return DecoderOutput(deep, attention, whole.gate, heads)


def advance(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Advance an LSTM cell by one step (Xu et al. 2015, equations 1 to 3).

    Args:
        gates: (..., 4n), input gate, forget gate, output gate and candidate, before their
            nonlinearities (equation 1).
        cell: (..., n), the cell state.

    Returns the new hidden state and cell state, both (..., n).
    """
    size = cell.shape[-1]
    opened, candidate = torch.split(gates, [3 * size, size], dim=-1)
    input_, forget, output = opened.sigmoid().chunk(3, dim=-1)
    cell = forget * cell + input_ * candidate.tanh()  # equation 2
    return output * cell.tanh(), cell  # equation 3


def build_decoder(config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> Decoder:
    """Make the decoder that the configuration names, for grids (B, L, D) with D = `grid_dim`.

    Raises ConfigError: the sizes do not fit together.
    """
    module, name = DECODERS[config.kind].split(":")
    decoder = getattr(import_module(module), name)
    return cast(Decoder, decoder(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size))


def log_probabilities(logits: Tensor) -> Tensor:
    """Turn logits (..., words) into log-probabilities of the same shape, float32.

    They are finite. -inf is reserved for words that the constraints forbid.
    """
    return logits.float().log_softmax(dim=-1).clamp(min=-1e4)
