"""Bottom-up and top-down attention: an attention LSTM and a language LSTM (Anderson et al. 2018).

Section 3.2 of the paper, over the cells of the grid instead of detected regions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioner.model.attention import average_folded, fold, maps
from captioner.model.config import DecoderConfig
from captioner.model.decoder import (
    DecoderOutput,
    FusedLayers,
    RecurrentDecoder,
    advance,
    fuse_layers,
)
from captioner.model.state import State, StepOutput


class _Step(NamedTuple):
    """A step's language state h2_t (B, K, n), attention weights (B, K, H, L) and new state."""

    hidden: Tensor
    weights: Tensor
    state: State


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
        self.look_word = nn.Linear(m, 4 * n)
        self.look_mean = nn.Linear(self.attention.value_dim, 4 * n, bias=False)
        self.look_language = nn.Linear(n, 4 * n, bias=False)
        self.look_hidden = nn.Linear(n, 4 * n, bias=False)
        self.speak_look = nn.Linear(n, 4 * n)
        self.speak_context = nn.Linear(self.attention.value_dim, 4 * n, bias=False)
        self.speak_hidden = nn.Linear(n, 4 * n, bias=False)
        self.deep_hidden = nn.Linear(n, m)

    def tabulate(self) -> None:
        """Precompute each word's contribution to the gates, and its row of the output layer."""
        self._tabulate(first=self.look_word, last=self.deep_hidden)

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D); return the first state, with K = 1 hypothesis per image."""
        features = self.grid_layers(features)
        keys, values = self.attention.project(self.positions(features))
        zeros = features.new_zeros(features.shape[0], 1, self.config.hidden_dim)
        names = ("look_hidden", "look_cell", "speak_hidden", "speak_cell")
        return State(
            image={
                "keys": keys,
                # The context enters the language LSTM linearly: see `fold`.
                "values": fold(values, self.speak_context.weight, heads=self.config.heads),
            },
            hypothesis={
                **dict.fromkeys(names, zeros),
                "mean": self.look_mean(values.mean(dim=1, keepdim=True)),
            },
        )

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""
        words = self._first_layer(tokens, self.look_word)
        step = self._recur(words, state, *self._fused())
        attention, heads = maps(step.weights)
        logits = self._last_layer(step.hidden, self.deep_hidden)
        return StepOutput(logits, step.state, attention, None, heads)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Read the tokens (B, K, T) of K captions for each of the grids (B, L, D).

        The output at position t scores the successor of tokens[..., t].
        """
        state = self.start(features).expand(tokens.shape[1])
        hidden, weights = [], []
        words = self.look_word(self._embed(tokens))
        fused = self._fused(dtype=words.dtype)
        for gates in words.unbind(dim=2):
            step = self._recur(gates, state, *fused)
            state = step.state
            hidden.append(step.hidden)
            weights.append(step.weights)
        attention, heads = maps(torch.stack(weights, dim=2))
        deep = self.dropout(self.deep_hidden(torch.stack(hidden, dim=2)))
        return DecoderOutput(deep, attention, None, heads)

    def _fused(self, *, dtype: torch.dtype | None = None) -> tuple[FusedLayers, FusedLayers]:
        """Return the functions that apply the layers of h2_(t-1) and of h1_t; see `fuse_layers`."""
        return (
            fuse_layers(self.look_language, self.speak_hidden, dtype=dtype),
            fuse_layers(self.speak_look, self.attention.score.query, dtype=dtype),
        )

    def _recur(
        self, gates: Tensor, state: State, speak_layers: FusedLayers, look_layers: FusedLayers
    ) -> _Step:
        """Advance both LSTMs.

        Args:
            gates: (B, K, 4n), the word's part of the attention LSTM's gates.
            state: the state after the previous step.
            speak_layers, look_layers: from `_fused`.
        """
        before = state.hypothesis
        look_language, speak_hidden = speak_layers(before["speak_hidden"])
        look_hidden = self.look_hidden(before["look_hidden"])
        gates = gates + before["mean"] + look_language + look_hidden
        look, look_cell = advance(gates, before["look_cell"])
        speak_look, queries = look_layers(look)
        weights = self.attention.weigh_projected(queries, state.image["keys"])
        context = average_folded(weights, state.image["values"])
        gates = context + speak_look + speak_hidden
        speak, speak_cell = advance(gates, before["speak_cell"])
        hypothesis = {
            "mean": before["mean"],
            "look_hidden": look,
            "look_cell": look_cell,
            "speak_hidden": speak,
            "speak_cell": speak_cell,
        }
        return _Step(speak, weights, State(state.image, hypothesis))
