"""The decoder of a transformer (Vaswani et al. 2017, section 3.1).

During generation the state holds the keys and values of each hypothesis's words, so that a step
computes only the newest word.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from captioner.model.attention import Attention, ProjectedGrid, attend_fused, causal, maps
from captioner.model.config import DecoderConfig
from captioner.model.decoder import DecoderOutput, State, StepOutput, WordDecoder
from captioner.model.layers import Layer, grid_layers, project_back
from captioner.model.positions import GRID_SIDE, Positions
from captioner.model.scores import ProductScore

_WORDS = 512  # positions of a caption; 9 bits


class TransformerDecoder(WordDecoder):
    """Layers of masked self-attention, attention over the grid, and a feed-forward network.

    The returned attention is the attention of the last layer over the grid.
    """

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size=vocabulary_size)
        m, n = config.embedding_dim, config.hidden_dim
        self.grid_layers, grid_dim, positions = grid_layers(config, grid_dim=grid_dim)
        self.grid_projection = nn.Linear(grid_dim, n)
        self.word_projection = nn.Linear(m, n)
        self.grid_positions = Positions(
            kind=positions, dim=n, axes=2, length=GRID_SIDE, scaled=config.scaled_positions
        )
        self.word_positions = Positions(
            kind=config.positions, dim=n, axes=1, length=_WORDS, scaled=config.scaled_positions
        )
        self.position_projection = project_back(n, self.word_positions.output_dim)
        self.layers = nn.ModuleList(
            _Layer(config, key_dim=self.grid_positions.output_dim) for _ in range(config.layers)
        )
        self.final_norm = nn.LayerNorm(n) if config.norm == "pre" else nn.Identity()
        self.deep_hidden = nn.Linear(n, m)

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D) for every layer; return the first state (K = 1)."""
        image = {}
        for number, grid in enumerate(self._grids(features)):
            image[f"keys{number}"], image[f"values{number}"] = grid
        empty = features.new_zeros(len(features), 1, 0, 2 * self.config.hidden_dim)
        return State(image, {f"layer{number}": empty for number in range(self.config.layers)})

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score their successors."""
        words = self.word_projection(self.embed(tokens))
        length = state.hypothesis["layer0"].shape[2]
        words = self._add_positions(words.unsqueeze(2), first=length).squeeze(2)
        caches: dict[str, Tensor] = {}
        weights = words  # replaced by the last layer
        for number, layer in enumerate(self._layers()):
            name = f"layer{number}"
            words, caches[name] = layer.attend_newest(words, state.hypothesis[name])
            grid = ProjectedGrid(state.image[f"keys{number}"], state.image[f"values{number}"])
            words, weights = layer.attend_grid(words, grid, need_weights=self._is_last(number))
        attention, heads = maps(weights)
        logits = self.logits(self.dropout(self.deep_hidden(self.final_norm(words))))
        return StepOutput(logits, State(state.image, caches), attention, None, heads)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Read whole captions, all words at once; see `Decoder.forward`."""
        words, weights, _ = self._read_captions(features, tokens)
        deep = self.dropout(self.deep_hidden(self.final_norm(words)))
        attention, heads = maps(weights.view(*tokens.shape, *weights.shape[2:]))
        return DecoderOutput(deep, attention, None, heads)

    def word_attention(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Return the last layer's self-attention (B, K, H, T, T) of tokens (B, K, T)."""
        _, _, inputs = self._read_captions(features, tokens)
        mask = causal(tokens.shape[-1], tokens.shape[-1], device=tokens.device)
        last = self._layers()[-1]
        words = last.sublayer_input(inputs, 0)
        keys = last.self_attention.project(words).keys
        weights = last.self_attention.weigh(words, keys, mask)  # (B * K, T, H, T)
        return weights.view(*tokens.shape, *weights.shape[2:]).transpose(2, 3)

    def _read_captions(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Apply all layers to the tokens (B, K, T).

        Returns the words (B, K, T, n), the weights (B, K * T, H, L) of the last layer over the
        grid, and the input (B * K, T, n) of the last layer.
        """
        length = tokens.shape[-1]
        words = self._add_positions(self.word_projection(self.embed(tokens)))
        mask = causal(length, length, device=tokens.device)
        weights = inputs = words
        for number, (layer, grid) in enumerate(
            zip(self._layers(), self._grids(features), strict=True)
        ):
            inputs = words.flatten(0, 1)  # each caption attends over itself
            attended = layer.self_attend(inputs, mask)
            flat = attended.view(words.shape).flatten(1, 2)  # captions of an image share its grid
            flat, weights = layer.attend_grid(flat, grid, need_weights=self._is_last(number))
            words = flat.view(words.shape)
        return words, weights, inputs

    def _grids(self, features: Tensor) -> list[ProjectedGrid]:
        """Project the grids (B, L, D) for every layer."""
        cells = self.grid_positions(self.grid_projection(self.grid_layers(features)))
        return [layer.cross_attention.project(cells) for layer in self._layers()]

    def _add_positions(self, words: Tensor, *, first: int = 0) -> Tensor:
        """Encode the positions `first`, first + 1, ... of the words (B, K, T, n)."""
        return cast(Tensor, self.position_projection(self.word_positions(words, first=first)))

    def _is_last(self, number: int) -> bool:
        return number == self.config.layers - 1

    def _layers(self) -> list[_Layer]:
        return cast("list[_Layer]", list(self.layers))


class _Layer(Layer):
    """Self-attention, attention over the grid, and a feed-forward network."""

    def __init__(self, config: DecoderConfig, *, key_dim: int) -> None:
        super().__init__(config, sublayers=3)
        n = config.hidden_dim
        self.cross_attention = Attention(
            score=config.score,
            query_dim=n,
            key_dim=key_dim,
            attention_dim=config.attention_dim,
            value_dim=config.value_dim or n,
            heads=config.heads,
        )
        self.cross_attention_output = nn.Linear(self.cross_attention.value_dim, n)
        if self.pre_norm and config.score == "none":
            self.norms[1] = nn.Identity()  # the score ignores queries

    def attend_newest(self, words: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Apply self-attention from the newest words (B, K, n) to themselves and earlier words.

        `cache` (B, K, S, 2n) has keys and values of the S words before. Returns the words and the
        new cache (B, K, S + 1, 2n).
        """
        attention, newest = self.self_attention, self.sublayer_input(words, 0)
        queries = attention.score.query(newest) * cast(ProductScore, attention.score).scale
        new = torch.cat(attention.project(newest), dim=-1).unsqueeze(2)
        cache = torch.cat([cache, new], dim=2)
        keys, values = cache.flatten(0, 1).chunk(2, dim=-1)
        queries = queries.flatten(0, 1).unsqueeze(1)
        context = attend_fused(queries, keys, values, heads=attention.score.heads).view_as(words)
        return self.residual(words, self.self_attention_output(context), 0), cache

    def attend_grid(
        self, words: Tensor, grid: ProjectedGrid, *, need_weights: bool
    ) -> tuple[Tensor, Tensor]:
        """Apply attention over this layer's grid, and the feed-forward network.

        Returns the words (B, Q, n), and the weights (B, Q, H, L) or without `need_weights` a
        placeholder.
        """
        queries, weights = self.sublayer_input(words, 1), words
        if need_weights:
            context, weights = self.cross_attention(queries, grid)
        else:
            context = self.cross_attention.attend(queries, grid)
        words = self.residual(words, self.cross_attention_output(context), 1)
        return self.residual(words, self.feed_forward(self.sublayer_input(words, 2)), 2), weights
