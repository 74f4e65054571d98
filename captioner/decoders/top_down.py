"""Bottom-up and top-down attention: one LSTM looks, a second one speaks (Anderson et al. 2018).

Section 3.2 of the paper, over the cells of the grid instead of detected regions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioner.attention.attention import average_folded, fold, maps
from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import DecoderOutput, RecurrentDecoder, advance
from captioner.decoders.state import State, StepOutput

__all__ = ["TopDownDecoder"]


class _Step(NamedTuple):
    """What a step leaves: the language LSTM's hidden state (B, K, n), weights (B, K, H, L)."""

    hidden: Tensor
    weights: Tensor
    state: State


class TopDownDecoder(RecurrentDecoder):
    """The attention LSTM reads [h2_(t-1), mean of the grid, E y_(t-1)]; its state h1_t looks.

    The language LSTM reads [context, h1_t]; its state h2_t says the word.
    """

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, grid_dim=grid_dim, vocabulary_size=vocabulary_size)
        m, n = config.embedding_dim, config.hidden_dim
        # What enters the gates of the two LSTMs, each from its own source; one bias each.
        self.look_word = nn.Linear(m, 4 * n)
        self.look_mean = nn.Linear(self.attention.value_dim, 4 * n, bias=False)
        self.look_language = nn.Linear(n, 4 * n, bias=False)
        self.look_hidden = nn.Linear(n, 4 * n, bias=False)
        self.speak_look = nn.Linear(n, 4 * n)
        self.speak_context = nn.Linear(self.attention.value_dim, 4 * n, bias=False)
        self.speak_hidden = nn.Linear(n, 4 * n, bias=False)
        self.deep_hidden = nn.Linear(n, m)

    def tabulate(self) -> None:
        """Work out once what each word adds to the gates, and what scores it."""
        self._tabulate(first=self.look_word, last=self.deep_hidden)

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D) and begin one hypothesis an image (K = 1), from zeros."""
        features = self.grid_layers(features)
        keys, values = self.attention.project(self.positions(features))
        nothing = features.new_zeros(features.shape[0], 1, self.config.hidden_dim)
        names = ("look_hidden", "look_cell", "speak_hidden", "speak_cell")
        return State(
            image={
                "keys": keys,
                # The context enters the language LSTM linearly: its weights are applied once.
                "values": fold(values, self.speak_context.weight, heads=self.config.heads),
            },
            hypothesis={
                **dict.fromkeys(names, nothing),
                "mean": self.look_mean(values.mean(dim=1, keepdim=True)),
            },
        )

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""
        done = self._recur(self._enter(tokens, self.look_word), state)
        attention, heads = maps(done.weights)
        logits = self._leave(done.hidden, self.deep_hidden)
        return StepOutput(logits, done.state, attention, None, heads)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: read the tokens (B, K, T) of K captions of each image's grid (B, L, D).

        The output at t is for the token that follows tokens[..., t].
        """
        state = self.start(features).expand(tokens.shape[1])
        hidden, weights = [], []
        for gates in self.look_word(self._embed(tokens)).unbind(dim=2):
            done = self._recur(gates, state)
            state = done.state
            hidden.append(done.hidden)
            weights.append(done.weights)
        attention, heads = maps(torch.stack(weights, dim=2))
        deep = self.dropout(self.deep_hidden(torch.stack(hidden, dim=2)))
        return DecoderOutput(deep, attention, None, heads)

    def _recur(self, gates: Tensor, state: State) -> _Step:
        """Advance both LSTMs, with the attention between them.

        Args:
            gates: (B, K, 4n), what the word adds to the gates of the attention LSTM.
            state: of the step before.
        """
        before = state.hypothesis
        gates = (
            gates
            + before["mean"]
            + self.look_language(before["speak_hidden"])
            + self.look_hidden(before["look_hidden"])
        )
        look, look_cell = advance(gates, before["look_cell"])
        weights = self.attention.weigh(look, state.image["keys"])
        gates = (
            average_folded(weights, state.image["values"])
            + self.speak_look(look)
            + self.speak_hidden(before["speak_hidden"])
        )
        speak, speak_cell = advance(gates, before["speak_cell"])
        hypothesis = {
            "mean": before["mean"],
            "look_hidden": look,
            "look_cell": look_cell,
            "speak_hidden": speak,
            "speak_cell": speak_cell,
        }
        return _Step(speak, weights, State(state.image, hypothesis))
