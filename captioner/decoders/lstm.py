"""The decoder: an LSTM that attends over the grid for every word (Xu et al. 2015, section 3.1.2).

Every tensor has the shape (B, K, ...): B images with K hypotheses each, which share their image's
grid. K is the captions of an image in training, the beam in beam search, the samples in sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.attention import Attention, ProjectedGrid
from captioner.errors import ConfigError, GenerationError
from captioner.vocabulary import END

__all__ = ["Decoder", "DecoderConfig", "DecoderOutput", "DecoderState", "StepDecoder", "StepOutput"]

_FEW_ROWS = 8  # of a step; with more of them the gain is gone


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The sizes of the decoder."""

    vocabulary_size: int  # words and special tokens
    grid_dim: int  # D, the features of a grid cell: the encoder decides it
    embedding_dim: int = 512  # m: words, and the deep output layer, which shares their matrix
    hidden_dim: int = 512  # n: the LSTM's hidden and cell state
    attention_dim: int = 256  # A: A numbers a cell and hypothesis are much of a step on a CPU
    value_dim: int | None = None  # V: None attends over the raw features, as the paper does
    score: str = "additive"  # the score function, by its name in captioner.attention
    dropout: float = 0.3  # on embedded words and before the output; 0.5 starves small data sets

    def __post_init__(self) -> None:
        for name in (
            "vocabulary_size", "grid_dim", "embedding_dim", "hidden_dim", "attention_dim"
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"decoder {name} {getattr(self, name)} is not positive")
        if self.value_dim is not None and self.value_dim < 1:
            raise ConfigError(f"decoder value_dim {self.value_dim} is neither positive nor null")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"decoder dropout {self.dropout} is not in [0, 1)")


class DecoderState(NamedTuple):
    """What one step hands to the next.

    hidden and cell: (B, K, n).
    """

    hidden: Tensor
    cell: Tensor

    def select(self, parents: Tensor) -> DecoderState:
        """Let hypothesis k of image b follow hypothesis parents[b, k] (B, K)."""
        index = parents.unsqueeze(-1).expand(-1, -1, self.hidden.shape[-1])
        return DecoderState(self.hidden.gather(1, index), self.cell.gather(1, index))

    def take(self, rows: Tensor) -> DecoderState:
        """Keep these images alone."""
        return DecoderState(self.hidden[rows], self.cell[rows])

    def expand(self, hypotheses: int) -> DecoderState:
        """Give every image the same state for each of its K hypotheses."""
        return DecoderState(*(part.expand(-1, hypotheses, -1) for part in self))


class StepOutput(NamedTuple):
    """One step of B images with K hypotheses.

    logits: (B, K, words); attention: (B, K, L), sums to 1; gate: (B, K), in 0..1.
    """

    logits: Tensor
    attention: Tensor
    gate: Tensor
    state: DecoderState

    def log_probabilities(self) -> Tensor:
        """Turn the logits into log-probabilities (B, K, words), float32.

        Raises:
            GenerationError: they are not numbers.

        """
        logs = self.logits.float().log_softmax(dim=-1)
        # One NaN or infinite logit makes its whole row NaN, so that a single column tells.
        if torch.isnan(logs[..., END]).any():
            raise GenerationError(
                "the model scored words with NaN or infinity: its weights are damaged, or the "
                "device overflowed; try float32, or another checkpoint"
            )
        # An impossible word stays finite: -inf is kept for what the constraints forbid, so that
        # there always is a hypothesis to return.
        return logs.clamp_(min=-1e4)


class StepDecoder(Protocol):
    """What generation needs of a decoder; a hand-made one is as good as a trained one."""

    def start(self, features: Tensor) -> tuple[DecoderState, ProjectedGrid]:
        """Begin one hypothesis an image (K = 1)."""

    def step(self, tokens: Tensor, state: DecoderState, grid: ProjectedGrid) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""


class DecoderOutput(NamedTuple):
    """A teacher-forced pass over T tokens.

    deep: (B, K, T, m), what `Decoder.logits` turns into scores of words; attention: (B, K, T, L);
    gate: (B, K, T).
    """

    deep: Tensor
    attention: Tensor
    gate: Tensor


class Decoder(nn.Module):
    """Attention LSTM with a deep output layer whose matrix is that of the embedded words."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        m, n = config.embedding_dim, config.hidden_dim
        context_dim = config.value_dim or config.grid_dim
        self.embedding = nn.Embedding(config.vocabulary_size, m)
        self.attention = Attention(
            score=config.score,
            key_dim=config.grid_dim,
            query_dim=n,
            attention_dim=config.attention_dim,
            value_dim=config.value_dim,
        )
        self.initial_hidden = nn.Linear(config.grid_dim, n)
        self.initial_cell = nn.Linear(config.grid_dim, n)
        self.gate = nn.Linear(n, 1)
        # Equation 1 in three parts: what comes from the word does not wait for the recurrence.
        self.word_gates = nn.Linear(m, 4 * n)
        self.context_gates = nn.Linear(context_dim, 4 * n, bias=False)
        self.hidden_gates = nn.Linear(n, 4 * n, bias=False)
        self.deep_hidden = nn.Linear(n, m)
        self.deep_context = nn.Linear(context_dim, m, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary_size))
        self.dropout = nn.Dropout(config.dropout)
        self.word_table: Tensor | None
        self.register_buffer("word_table", None, persistent=False)
        # The matrix also scores words: rows of unit variance would start with huge logits.
        nn.init.normal_(self.embedding.weight, std=m**-0.5)

    def start(self, features: Tensor) -> tuple[DecoderState, ProjectedGrid]:
        """Project the grid (B, L, D) and begin one hypothesis an image (K = 1).

        h_0 and c_0 come from the mean of the grid (section 3.1.2).
        """
        mean = features.mean(dim=1, keepdim=True)
        state = DecoderState(
            torch.tanh(self.initial_hidden(mean)), torch.tanh(self.initial_cell(mean))
        )
        keys, values = self.attention.project(features)
        # The context is a weighted mean of the values and enters LSTM and output linearly, so that
        # their weights can be applied to the values, once, instead of to every step's context.
        values = torch.cat([self.context_gates(values), self.deep_context(values)], dim=-1)
        return state, ProjectedGrid(keys, values)

    @torch.no_grad()
    def tabulate(self) -> None:
        """Work out once what each word adds to the LSTM's gates; the decoder is then for use only.

        A table of words x 4n numbers takes the place of a matrix product in every step.
        """
        self.word_table = self.word_gates(self.embedding.weight)

    def step(self, tokens: Tensor, state: DecoderState, grid: ProjectedGrid) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""
        words = self._embed(tokens)
        table = self.word_table
        word_gates = self.word_gates(words) if table is None else F.embedding(tokens, table)
        deep_context, attention, gate, state = self._recur(word_gates, state, grid)
        deep = self._deep_output(words, state.hidden, deep_context)
        return StepOutput(self._step_logits(deep), attention, gate, state)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: read the tokens (B, K, T) of K captions of each image's grid (B, L, D).

        The output at t is for the token that follows tokens[..., t].
        """
        state, grid = self.start(features)
        state = state.expand(tokens.shape[1])
        words = self._embed(tokens)
        steps = []
        for word_gates in self.word_gates(words).unbind(dim=2):
            deep_context, attention, gate, state = self._recur(word_gates, state, grid)
            steps.append((deep_context, attention, gate, state.hidden))
        deep_context, attention, gate, hidden = (
            torch.stack(part, dim=2) for part in zip(*steps, strict=True)
        )
        return DecoderOutput(self._deep_output(words, hidden, deep_context), attention, gate)

    def logits(self, deep: Tensor) -> Tensor:
        """Score every word from the deep output (..., m): (..., words)."""
        return F.linear(deep, self.embedding.weight, self.output_bias)

    def _step_logits(self, deep: Tensor) -> Tensor:
        """Do as `logits` does, for the rows (B, K, m) of one step."""
        rows = deep.flatten(0, 1)
        if len(rows) > _FEW_ROWS or deep.dtype is not torch.float32:
            return self.logits(deep)
        # With the rows of a single beam, a CPU's BLAS takes half the time when the matrix is first.
        scores = torch.addmm(self.output_bias.unsqueeze(1), self.embedding.weight, rows.T)
        return scores.T.reshape(*deep.shape[:2], -1)

    def _embed(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.embedding(tokens)))

    def _recur(
        self, word_gates: Tensor, state: DecoderState, grid: ProjectedGrid
    ) -> tuple[Tensor, Tensor, Tensor, DecoderState]:
        """Attend, gate the context, and advance the LSTM (equations 1 to 6, section 4.2.1).

        Returns L_z z_t, attention weights, gate and state.
        """
        context, weights = self.attention(state.hidden, grid)
        attention = weights.mean(dim=2)  # over the heads
        gate = torch.sigmoid(self.gate(state.hidden))
        context_gates, deep_context = (gate * context).split(  # of z_t
            [word_gates.shape[-1], self.config.embedding_dim], dim=-1
        )
        gates = word_gates + context_gates + self.hidden_gates(state.hidden)
        input_, forget, output, candidate = gates.chunk(4, dim=-1)
        cell = forget.sigmoid() * state.cell + input_.sigmoid() * candidate.tanh()  # equation 2
        hidden = output.sigmoid() * cell.tanh()  # equation 3
        return deep_context, attention, gate.squeeze(-1), DecoderState(hidden, cell)

    def _deep_output(self, words: Tensor, hidden: Tensor, deep_context: Tensor) -> Tensor:
        """E y_(t-1) + L_h h_t + L_z z_t, the inside of equation 7."""
        deep = words + self.deep_hidden(hidden) + deep_context
        return cast(Tensor, self.dropout(deep))
