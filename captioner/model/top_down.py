"""Bottom-up and top-down attention: an attention LSTM and a language LSTM (Anderson et al. 2018).

Section 3.2 of the paper, over the cells of the grid instead of detected regions.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from captioner.model.attention import ProjectedGrid
from captioner.model.config import DecoderConfig
from captioner.model.decoder import Recurrence, RecurrentDecoder, State, advance


class TopDownDecoder(RecurrentDecoder):
    """Two LSTMs, h1 and h2, with attention between them.

    h1_t    = LSTM([h2_(t-1); mean_i v_i; E y_(t-1)], h1_(t-1))     equation 2
    alpha_t = softmax(score(h1_t, v))                               equations 3 and 4
    h2_t    = LSTM([sum_i alpha_ti v_i; h1_t], h2_(t-1))            equations 5 and 6
    p(y_t)  = softmax(E^T W h2_t)                                   equation 7, tied weights
    """

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)
        m, n = config.embedding_dim, config.hidden_dim
        # The matrices of both LSTMs, split by input; one bias each.
        self.attention_lstm_word = nn.Linear(m, 4 * n)
        self.attention_lstm_mean = nn.Linear(self.attention.value_dim, 4 * n, bias=False)
        self.attention_lstm_language = nn.Linear(n, 4 * n, bias=False)
        self.attention_lstm_hidden = nn.Linear(n, 4 * n, bias=False)
        self.language_lstm_attention = nn.Linear(n, 4 * n)
        self.language_lstm_context = nn.Linear(self.attention.value_dim, 4 * n, bias=False)
        self.language_lstm_hidden = nn.Linear(n, 4 * n, bias=False)
        self.deep_hidden = nn.Linear(n, m)

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D); return the first state, with K = 1 hypothesis per image."""
        features = self.grid_layers(features)
        keys, values = self.attention.project(self.positions(features))
        zeros = features.new_zeros(features.shape[0], 1, self.config.hidden_dim)
        names = ("attention_hidden", "attention_cell", "language_hidden", "language_cell")
        mean = self.attention_lstm_mean(values.mean(dim=1, keepdim=True))
        return State(
            image={"keys": keys, "values": values},
            hypothesis={**dict.fromkeys(names, zeros), "mean": mean},
        )

    def read(self, words: Tensor) -> Tensor:
        """Return the part (..., 4n) of the attention LSTM's gates that depends on words alone."""
        return cast(Tensor, self.attention_lstm_word(words))

    def deep(self, words: Tensor, hidden: Tensor, context: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return W h2_t (..., m)."""
        return cast(Tensor, self.dropout(self.deep_hidden(hidden)))

    def recur(self, word_gates: Tensor, state: State) -> tuple[Recurrence, State]:
        """Advance the attention LSTM, attend, and advance the language LSTM."""
        hidden, cell = self.attention_step(word_gates, state)
        grid = ProjectedGrid(state.image["keys"], state.image["values"])
        context, weights = self.attention(hidden, grid)
        state = self.language_step(self.language_lstm_context(context), hidden, cell, state)
        return Recurrence(state.hypothesis["language_hidden"], weights), state

    def attention_step(self, word_gates: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Advance the attention LSTM; return its hidden state and cell state (B, K, n)."""
        before = state.hypothesis
        gates = (
            word_gates
            + before["mean"]
            + self.attention_lstm_language(before["language_hidden"])
            + self.attention_lstm_hidden(before["attention_hidden"])
        )
        return advance(gates, before["attention_cell"])

    def language_step(
        self, context_gates: Tensor, hidden: Tensor, cell: Tensor, state: State
    ) -> State:
        """Advance the language LSTM from the state before the step; return the new state.

        `context_gates` (B, K, 4n) are the part of the context; `hidden` and `cell` (B, K, n) are
        the new states of the attention LSTM.
        """
        before = state.hypothesis
        gates = (
            context_gates
            + self.language_lstm_attention(hidden)
            + self.language_lstm_hidden(before["language_hidden"])
        )
        language_hidden, language_cell = advance(gates, before["language_cell"])
        hypothesis = {
            "mean": before["mean"],
            "attention_hidden": hidden,
            "attention_cell": cell,
            "language_hidden": language_hidden,
            "language_cell": language_cell,
        }
        return State(state.image, hypothesis)
