"""Show, Attend and Tell: an LSTM that attends over the grid for every word.

Xu et al. 2015, section 3.1.2.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.attention import Attention, ProjectedGrid
from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import Decoder, DecoderOutput
from captioner.decoders.state import State, StepOutput

__all__ = ["LSTMDecoder"]

_FEW_ROWS = 8  # of a step; with more of them the gain is gone


class LSTMDecoder(Decoder):
    """Attention LSTM with a deep output layer whose matrix is that of the embedded words."""

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        m, n = config.embedding_dim, config.hidden_dim
        context_dim = config.value_dim or grid_dim
        self.embedding = nn.Embedding(vocabulary_size, m)
        self.attention = Attention(
            score=config.score,
            key_dim=grid_dim,
            query_dim=n,
            attention_dim=config.attention_dim,
            value_dim=config.value_dim,
        )
        self.initial_hidden = nn.Linear(grid_dim, n)
        self.initial_cell = nn.Linear(grid_dim, n)
        self.gate = nn.Linear(n, 1)
        # Equation 1 in three parts: what comes from the word does not wait for the recurrence.
        self.word_gates = nn.Linear(m, 4 * n)
        self.context_gates = nn.Linear(context_dim, 4 * n, bias=False)
        self.hidden_gates = nn.Linear(n, 4 * n, bias=False)
        self.deep_hidden = nn.Linear(n, m)
        self.deep_context = nn.Linear(context_dim, m, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.dropout = nn.Dropout(config.dropout)
        self.word_table: Tensor | None
        self.register_buffer("word_table", None, persistent=False)
        self._tabulated: tuple[tuple[Tensor, int], ...] = ()
        # The matrix also scores words: rows of unit variance would start with huge logits.
        nn.init.normal_(self.embedding.weight, std=m**-0.5)

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D) and begin one hypothesis an image (K = 1).

        h_0 and c_0 come from the mean of the grid (section 3.1.2).
        """
        mean = features.mean(dim=1, keepdim=True)
        keys, values = self.attention.project(features)
        # The context is a weighted mean of the values and enters LSTM and output linearly, so that
        # their weights can be applied to the values, once, instead of to every step's context.
        values = torch.cat([self.context_gates(values), self.deep_context(values)], dim=-1)
        return State(
            image={"keys": keys, "values": values},
            hypothesis={
                "hidden": torch.tanh(self.initial_hidden(mean)),
                "cell": torch.tanh(self.initial_cell(mean)),
            },
        )

    @torch.no_grad()
    def tabulate(self) -> None:
        """Work out once what each word adds to the LSTM's gates.

        A table of words x 4n numbers takes the place of a matrix product in every step, until the
        weights that it was made from change.
        """
        self.word_table = self.word_gates(self.embedding.weight)
        self._tabulated = tuple((weight, _version(weight)) for weight in self._table_weights())

    def _table(self) -> Tensor | None:
        """Give the table, or forget it where the weights are not those that it was made from."""
        if self.word_table is not None:
            pairs = zip(self._table_weights(), self._tabulated, strict=True)
            if any(now is not then or _version(now) != version for now, (then, version) in pairs):
                self.word_table, self._tabulated = None, ()
        return self.word_table

    def _table_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.embedding.weight, self.word_gates.weight, self.word_gates.bias

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""
        words = self._embed(tokens)
        table = self._table()
        word_gates = self.word_gates(words) if table is None else F.embedding(tokens, table)
        deep_context, attention, gate, state = self._recur(word_gates, state)
        deep = self._deep_output(words, state.hypothesis["hidden"], deep_context)
        return StepOutput(self._step_logits(deep), state, attention, gate)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: read the tokens (B, K, T) of K captions of each image's grid (B, L, D).

        The output at t is for the token that follows tokens[..., t].
        """
        state = self.start(features).expand(tokens.shape[1])
        words = self._embed(tokens)
        steps = []
        for word_gates in self.word_gates(words).unbind(dim=2):
            deep_context, attention, gate, state = self._recur(word_gates, state)
            steps.append((deep_context, attention, gate, state.hypothesis["hidden"]))
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

    def _recur(self, word_gates: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor, State]:
        """Attend, gate the context, and advance the LSTM (equations 1 to 6, section 4.2.1).

        Returns L_z z_t, attention weights, gate and state.
        """
        hidden, cell = state.hypothesis["hidden"], state.hypothesis["cell"]
        grid = ProjectedGrid(state.image["keys"], state.image["values"])
        context, weights = self.attention(hidden, grid)
        attention = weights.mean(dim=2)  # over the heads
        gate = torch.sigmoid(self.gate(hidden))
        context_gates, deep_context = (gate * context).split(  # of z_t
            [word_gates.shape[-1], self.config.embedding_dim], dim=-1
        )
        gates = word_gates + context_gates + self.hidden_gates(hidden)
        input_, forget, output, candidate = gates.chunk(4, dim=-1)
        cell = forget.sigmoid() * cell + input_.sigmoid() * candidate.tanh()  # equation 2
        hidden = output.sigmoid() * cell.tanh()  # equation 3
        following = State(state.image, {"hidden": hidden, "cell": cell})
        return deep_context, attention, gate.squeeze(-1), following

    def _deep_output(self, words: Tensor, hidden: Tensor, deep_context: Tensor) -> Tensor:
        """E y_(t-1) + L_h h_t + L_z z_t, the inside of equation 7."""
        deep = words + self.deep_hidden(hidden) + deep_context
        return cast(Tensor, self.dropout(deep))


def _version(weight: Tensor) -> int:
    """Count the changes made to a tensor in place; torch does not count those in inference mode."""
    return 0 if weight.is_inference() else weight._version
