"""Show, Attend and Tell: an LSTM that attends over the grid for every word.

Xu et al. 2015, section 3.1.2. With `query: current` it attends after the LSTM, as in Luong et al.
2015, section 3.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from captioner.model.attention import ProjectedGrid
from captioner.model.config import DecoderConfig
from captioner.model.decoder import Recurrence, RecurrentDecoder, State, advance


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
        # The matrix of equation 1 in three parts, for E y_(t-1), h_(t-1) and z_t.
        self.word_gates = nn.Linear(m, 4 * n)
        self.hidden_gates = nn.Linear(n, 4 * n, bias=False)
        self.deep_hidden = nn.Linear(n, m)  # L_h; with `deep_context`, W_c
        self.deep_context = nn.Linear(context_dim, m, bias=False)  # L_z
        if config.query == "previous":
            self.gate = nn.Linear(n, 1)
            self.context_gates = nn.Linear(context_dim, 4 * n, bias=False)

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D); return the first state, with K = 1 hypothesis per image.

        h_0 and c_0 are computed from the mean of the grid (section 3.1.2).
        """
        features = self.grid_layers(features)
        mean = features.mean(dim=1, keepdim=True)
        keys, values = self.attention.project(self.positions(features))
        return State(
            image={"keys": keys, "values": values},
            hypothesis={
                "hidden": torch.tanh(self.initial_hidden(mean)),
                "cell": torch.tanh(self.initial_cell(mean)),
            },
        )

    def read(self, words: Tensor) -> Tensor:
        """Return the part (..., 4n) of the gates that depends on the words (..., m) alone."""
        return cast(Tensor, self.word_gates(words))

    def recur(self, word_gates: Tensor, state: State) -> tuple[Recurrence, State]:
        """Attend and advance the LSTM, in the order that `query` sets."""
        grid = ProjectedGrid(state.image["keys"], state.image["values"])
        hidden, cell = state.hypothesis["hidden"], state.hypothesis["cell"]
        gates, beta = word_gates + self.hidden_gates(hidden), None
        if self.config.query == "current":
            hidden, cell = advance(gates, cell)
            context, alpha = self.attention(hidden, grid)
        else:
            context, alpha = self.attention(hidden, grid)  # equations 4, 5 and 13
            beta = torch.sigmoid(self.gate(hidden))  # section 4.2.1
            context = beta * context
            hidden, cell = advance(gates + self.context_gates(context), cell)  # equations 1 to 3
            beta = beta.squeeze(-1)
        state = State(state.image, {"hidden": hidden, "cell": cell})
        return Recurrence(hidden, alpha, context, beta), state

    def deep(self, words: Tensor, hidden: Tensor, context: Tensor | None) -> Tensor:
        """Return the vector (..., m) that is multiplied by E^T (equation 7)."""
        return self.deep_output(words, hidden, self.deep_context(context))

    def deep_output(self, words: Tensor, hidden: Tensor, deep_context: Tensor) -> Tensor:
        """Return `deep`, given L_z z_t (..., m) instead of z_t."""
        deep = self.deep_hidden(hidden) + deep_context
        deep = words + deep if self.config.query == "previous" else torch.tanh(deep)
        return cast(Tensor, self.dropout(deep))
