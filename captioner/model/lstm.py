"""Show, Attend and Tell: an LSTM that attends over the grid for every word.

Xu et al. 2015, section 3.1.2. With `query: current` it attends after the LSTM, as in Luong et al.
2015, section 3.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from captioner.model.attention import average, average_folded, fold, maps
from captioner.model.config import DecoderConfig
from captioner.model.decoder import (
    DecoderOutput,
    FusedLayers,
    RecurrentDecoder,
    advance,
    fuse_layers,
)
from captioner.model.state import State, StepOutput


class LSTMDecoder(RecurrentDecoder):
    """An attention LSTM with a deep output layer.

    Let a be the grid's values, y the words and E their embedding. `query: previous` computes

        alpha_t = softmax(score(h_(t-1), a))               equations 4 and 5
        beta_t  = sigmoid(W_beta h_(t-1))                  section 4.2.1
        z_t     = beta_t sum_i alpha_ti a_i                equation 13
        h_t     = LSTM(E y_(t-1), h_(t-1), z_t)            equations 1 to 3
        p(y_t)  = softmax(E^T (E y_(t-1) + L_h h_t + L_z z_t))     equation 7, with L_o = E^T

    and `query: current`, which has no gate, computes

        h_t     = LSTM(E y_(t-1), h_(t-1))
        alpha_t = softmax(score(h_t, a))
        p(y_t)  = softmax(E^T tanh(W_c [sum_i alpha_ti a_i; h_t]))
    """

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)
        m, n = config.embedding_dim, config.hidden_dim
        context_dim = self.attention.value_dim
        self.initial_hidden = nn.Linear(self.grid_dim, n)
        self.initial_cell = nn.Linear(self.grid_dim, n)
        # The matrix of equation 1 in three parts: the words' part needs no recurrence.
        self.word_gates = nn.Linear(m, 4 * n)
        self.hidden_gates = nn.Linear(n, 4 * n, bias=False)
        self.deep_hidden = nn.Linear(n, m)  # L_h; with `deep_context`, W_c
        self.deep_context = nn.Linear(context_dim, m, bias=False)
        if config.query == "previous":
            self.gate = nn.Linear(n, 1)
            self.context_gates = nn.Linear(context_dim, 4 * n, bias=False)
        self.folded: Tensor | None
        self.register_buffer("folded", None, persistent=False)  # set by `tabulate`

    def tabulate(self) -> None:
        """Precompute each word's contribution to the LSTM's gates, and the matrix of the values."""
        self._tabulate(first=self.word_gates)
        self.folded = self._matrix().detach()

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D); return the first state, with K = 1 hypothesis per image.

        h_0 and c_0 are computed from the mean of the grid (section 3.1.2).
        """
        return self._start(features, folds=True)

    def _start(self, features: Tensor, *, folds: bool) -> State:
        """Return the first state. If `folds`, its values are folded, else they are (B, L, V)."""
        features = self.grid_layers(features)
        mean = features.mean(dim=1, keepdim=True)
        keys, values = self.attention.project(self.positions(features))
        if folds:
            # The context enters the LSTM and the output linearly. So the matrices are applied once
            # per image to the values, instead of to the context of every step.
            matrix = self._matrix() if self.folded is None else self.folded
            values = fold(values, matrix, heads=self.config.heads)
        return State(
            image={"keys": keys, "values": values},
            hypothesis={
                "hidden": torch.tanh(self.initial_hidden(mean)),
                "cell": torch.tanh(self.initial_cell(mean)),
            },
        )

    def _matrix(self) -> Tensor:
        """Return the matrices that are applied to the context, stacked in one matrix."""
        matrix = self.deep_context.weight
        if self.config.query == "previous":
            matrix = torch.cat([self.context_gates.weight, matrix])
        return matrix

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""
        words = self._embed(tokens)
        word_gates = self._first_layer(tokens, self.word_gates)
        deep_context, weights, gate, state = self._recur(
            word_gates, state, fuse_layers(*self._hidden_layers())
        )
        deep = self._deep_output(words, state.hypothesis["hidden"], deep_context)
        attention, heads = maps(weights)
        return StepOutput(self.logits(deep), state, attention, gate, heads)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Read the tokens (B, K, T) of K captions for each of the grids (B, L, D).

        The output at position t scores the successor of tokens[..., t].
        """
        # An image has L values and K * T contexts. The matrices are applied to whichever are fewer.
        folds = tokens.shape[1] * tokens.shape[2] >= features.shape[1]
        state = self._start(features, folds=folds).expand(tokens.shape[1])
        words = self._embed(tokens)
        gates_of_words = self.word_gates(words)
        # Autocast would convert the matrix in every step.
        matrix = None if folds else self._matrix().t().to(gates_of_words.dtype)
        hidden_layers = fuse_layers(*self._hidden_layers(), dtype=gates_of_words.dtype)
        contexts, weights, gates, hidden = [], [], [], []
        for word_gates in gates_of_words.unbind(dim=2):
            deep_context, weight, gate, state = self._recur(
                word_gates, state, hidden_layers, matrix
            )
            contexts.append(deep_context)
            weights.append(weight)
            hidden.append(state.hypothesis["hidden"])
            if gate is not None:
                gates.append(gate)
        deep = self._deep_output(words, torch.stack(hidden, dim=2), torch.stack(contexts, dim=2))
        attention, heads = maps(torch.stack(weights, dim=2))
        return DecoderOutput(deep, attention, torch.stack(gates, dim=2) if gates else None, heads)

    def _hidden_layers(self) -> list[nn.Module]:
        """Return the layers that are applied to the previous hidden state."""
        if self.config.query == "current":
            return [self.hidden_gates]
        return [self.hidden_gates, self.gate, self.attention.score.query]

    def _recur(
        self,
        word_gates: Tensor,
        state: State,
        hidden_layers: FusedLayers,
        matrix: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None, State]:
        """Attend and advance the LSTM, in the order that `query` sets.

        `hidden_layers` applies `_hidden_layers`. `matrix` (V, F) is applied to the context. It is
        None if the values are folded.
        Returns L_z z_t (B, K, m), attention weights (B, K, H, L), gate (B, K) and the new state.
        """
        keys, values = state.image["keys"], state.image["values"]
        hidden, cell = state.hypothesis["hidden"], state.hypothesis["cell"]
        hidden_gates, *rest = hidden_layers(hidden)
        if self.config.query == "current":
            hidden, cell = advance(word_gates + hidden_gates, cell)
            weights = self.attention.weigh(hidden, keys)
            deep_context, gate = _context(weights, values, matrix), None
        else:
            gate, queries = rest
            weights = self.attention.weigh_projected(queries, keys)
            gate = torch.sigmoid(gate)  # section 4.2.1
            # beta_t multiplies the weights, which are fewer numbers than the context.
            context = _context(gate.unsqueeze(-1) * weights, values, matrix)  # of z_t
            sizes = [word_gates.shape[-1], self.config.embedding_dim]
            context_gates, deep_context = torch.split(context, sizes, dim=-1)
            hidden, cell = advance(word_gates + context_gates + hidden_gates, cell)
            gate = gate.squeeze(-1)
        return deep_context, weights, gate, State(state.image, {"hidden": hidden, "cell": cell})

    def _deep_output(self, words: Tensor, hidden: Tensor, deep_context: Tensor) -> Tensor:
        """Return the vector (..., m) that is multiplied by E^T (equation 7)."""
        deep = self.deep_hidden(hidden) + deep_context
        deep = words + deep if self.config.query == "previous" else torch.tanh(deep)
        return cast(Tensor, self.dropout(deep))


def _context(weights: Tensor, values: Tensor, matrix: Tensor | None) -> Tensor:
    """Return the context times the matrix (B, K, F). The matrix is None if values are folded."""
    if matrix is None:
        return average_folded(weights, values)
    return torch.matmul(average(weights, values), matrix)
