"""Show, Attend and Tell: an LSTM that attends over the grid for every word.

Xu et al. 2015, section 3.1.2; with `query: current`, attention after the LSTM as in Luong et al.
2015, section 3.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.attention import average_folded, fold, maps
from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import DecoderOutput
from captioner.decoders.recurrence import RecurrentDecoder, advance
from captioner.decoders.state import State, StepOutput

__all__ = ["LSTMDecoder"]


class LSTMDecoder(RecurrentDecoder):
    """Attention LSTM with a deep output layer.

    query: previous
        alpha from h_(t-1); z_t = beta sum alpha a; h_t = LSTM(E y_(t-1), z_t, h_(t-1)); words from
        E y_(t-1) + L_h h_t + L_z z_t.
    query: current
        h_t = LSTM(E y_(t-1), h_(t-1)); alpha from h_t; words from the attentional hidden state
        tanh(W_c [sum alpha a; h_t]). There is no gate.
    """

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)
        m, n = config.embedding_dim, config.hidden_dim
        context_dim = self.attention.value_dim
        self.initial_hidden = nn.Linear(grid_dim, n)
        self.initial_cell = nn.Linear(grid_dim, n)
        # Equation 1 in three parts: what comes from the word does not wait for the recurrence.
        self.word_gates = nn.Linear(m, 4 * n)
        self.hidden_gates = nn.Linear(n, 4 * n, bias=False)
        self.deep_hidden = nn.Linear(n, m)  # with deep_context, W_c of `query: current`
        self.deep_context = nn.Linear(context_dim, m, bias=False)
        if config.query == "previous":
            self.gate = nn.Linear(n, 1)
            self.context_gates = nn.Linear(context_dim, 4 * n, bias=False)
        self.word_table: Tensor | None
        self.register_buffer("word_table", None, persistent=False)
        self._tabulated: tuple[tuple[Tensor, int], ...] = ()

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D) and begin one hypothesis an image (K = 1).

        h_0 and c_0 come from the mean of the grid (section 3.1.2).
        """
        mean = features.mean(dim=1, keepdim=True)
        keys, values = self.attention.project(self.positions.in_grid(features))
        # The context is a weighted mean of the values and enters LSTM and output linearly, so that
        # their weights can be applied to the values, once, instead of to every step's context.
        matrix = self.deep_context.weight
        if self.config.query == "previous":
            matrix = torch.cat([self.context_gates.weight, matrix])
        return State(
            image={"keys": keys, "values": fold(values, matrix, heads=self.config.heads)},
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
        deep_context, weights, gate, state = self._recur(word_gates, state)
        deep = self._deep_output(words, state.hypothesis["hidden"], deep_context)
        attention, heads = maps(weights)
        return StepOutput(self._step_logits(deep), state, attention, gate, heads)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: read the tokens (B, K, T) of K captions of each image's grid (B, L, D).

        The output at t is for the token that follows tokens[..., t].
        """
        state = self.start(features).expand(tokens.shape[1])
        words = self._embed(tokens)
        contexts, weights, gates, hidden = [], [], [], []
        for word_gates in self.word_gates(words).unbind(dim=2):
            deep_context, weight, gate, state = self._recur(word_gates, state)
            contexts.append(deep_context)
            weights.append(weight)
            hidden.append(state.hypothesis["hidden"])
            if gate is not None:
                gates.append(gate)
        deep = self._deep_output(words, torch.stack(hidden, dim=2), torch.stack(contexts, dim=2))
        attention, _ = maps(torch.stack(weights, dim=2))
        return DecoderOutput(deep, attention, torch.stack(gates, dim=2) if gates else None)

    def _recur(
        self, word_gates: Tensor, state: State
    ) -> tuple[Tensor, Tensor, Tensor | None, State]:
        """Attend and advance the LSTM, in the order that the configuration says.

        Returns L_z z_t (B, K, m), attention weights (B, K, H, L), gate (B, K) and state.
        """
        hidden, cell = state.hypothesis["hidden"], state.hypothesis["cell"]
        if self.config.query == "current":
            hidden, cell = advance(word_gates + self.hidden_gates(hidden), cell)
            deep_context, weights = self._look(hidden, state)
            return deep_context, weights, None, State(state.image, {"hidden": hidden, "cell": cell})
        context, weights = self._look(hidden, state)
        gate = torch.sigmoid(self.gate(hidden))  # section 4.2.1
        sizes = [word_gates.shape[-1], self.config.embedding_dim]
        context_gates, deep_context = torch.split(gate * context, sizes, dim=-1)  # of z_t
        hidden, cell = advance(word_gates + context_gates + self.hidden_gates(hidden), cell)
        following = State(state.image, {"hidden": hidden, "cell": cell})
        return deep_context, weights, gate.squeeze(-1), following

    def _look(self, hidden: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Attend with hidden states (B, K, n): what the context adds, and the weights."""
        weights = self.attention.weigh(hidden, state.image["keys"])
        return average_folded(weights, state.image["values"]), weights

    def _deep_output(self, words: Tensor, hidden: Tensor, deep_context: Tensor) -> Tensor:
        """E y_(t-1) + L_h h_t + L_z z_t, the inside of equation 7; or the attentional state."""
        deep = self.deep_hidden(hidden) + deep_context
        deep = words + deep if self.config.query == "previous" else torch.tanh(deep)
        return cast(Tensor, self.dropout(deep))


def _version(weight: Tensor) -> int:
    """Count the changes made to a tensor in place; torch does not count those in inference mode."""
    return 0 if weight.is_inference() else weight._version
