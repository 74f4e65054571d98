"""The decoder of a transformer: words look at the words before, and at the grid.

Vaswani et al. 2017, section 3.1. In generation, keys and values of the words so far are kept in the
state, so that a step works on the newest word alone.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from captioner.attention import Attention, ProjectedGrid, maps
from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import DecoderOutput
from captioner.decoders.state import State, StepOutput
from captioner.decoders.words import WordDecoder
from captioner.masks import causal
from captioner.positions import GRID_SIDE, Positions, word_places

__all__ = ["TransformerDecoder"]

_WORDS = 512  # places that a caption has at most; binary ones are 9 numbers


class TransformerDecoder(WordDecoder):
    """Layers of masked self-attention, attention over the grid, and two matrices with a ReLU.

    The attention that is told is that of the last layer over the grid.
    """

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size=vocabulary_size)
        m, n = config.embedding_dim, config.hidden_dim
        self.enter_grid = nn.Linear(grid_dim, n)
        self.enter_word = nn.Linear(m, n)
        self.grid_positions = Positions(kind=config.positions, dim=n, axes=2, length=GRID_SIDE)
        self.word_positions = Positions(kind=config.positions, dim=n, axes=1, length=_WORDS)
        self.place_word = self._back_to(n, self.word_positions.output_dim)
        self.layers = nn.ModuleList(
            _Layer(config, key_dim=self.grid_positions.output_dim) for _ in range(config.layers)
        )
        self.final_norm = nn.LayerNorm(n) if config.norm == "pre" else nn.Identity()
        self.deep_hidden = nn.Linear(n, m)

    @staticmethod
    def _back_to(width: int, given: int) -> nn.Module:
        """Bring words with appended bits back to the width of the layers."""
        return nn.Identity() if given == width else nn.Linear(given, width)

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D) for every layer, and begin one hypothesis (K = 1) each."""
        cells = self.grid_positions.in_grid(self.enter_grid(features))
        image, hypothesis = {}, {}
        nothing = cells.new_zeros(len(features), 1, 0, self.config.hidden_dim)
        for number, layer in enumerate(self._layers()):
            image[f"keys{number}"], image[f"values{number}"] = layer.look.project(cells)
            hypothesis[f"keys{number}"] = hypothesis[f"values{number}"] = nothing
        return State(image, hypothesis)

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""
        words, state, weights = self._run(tokens.unsqueeze(-1), state)
        attention, heads = maps(weights[:, :, 0])
        logits = self._step_logits(self._deep_output(words).squeeze(2))
        return StepOutput(logits, state, attention, None, heads)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: read the tokens (B, K, T) of K captions of each image's grid (B, L, D).

        The output at t is for the token that follows tokens[..., t]; all T at once.
        """
        words, _, weights = self._run(tokens, self.start(features).expand(tokens.shape[1]))
        return DecoderOutput(self._deep_output(words), maps(weights)[0])

    def _run(self, tokens: Tensor, state: State) -> tuple[Tensor, State, Tensor]:
        """Read T more tokens (B, K, T) behind those of the state.

        Returns what the last layer says of them (B, K, T, n), the state that includes them, and the
        last layer's attention weights over the grid (B, K, T, H, L).
        """
        past = state.hypothesis["keys0"].shape[2]
        places = word_places(tokens.shape[2], first=past, device=tokens.device)
        words = self.place_word(self.word_positions(self.enter_word(self._embed(tokens)), places))
        hypothesis: dict[str, Tensor] = {}
        weights = words  # there is at least one layer
        for number, layer in enumerate(self._layers()):
            names = f"keys{number}", f"values{number}"
            before = ProjectedGrid(*(state.hypothesis[name] for name in names))
            grid = ProjectedGrid(*(state.image[name] for name in names))
            words, after, weights = layer(
                words, before, grid, tell=number == self.config.layers - 1
            )
            hypothesis.update(zip(names, after, strict=True))
        return self.final_norm(words), State(state.image, hypothesis), weights

    def _layers(self) -> list[_Layer]:
        return cast("list[_Layer]", list(self.layers))

    def _deep_output(self, words: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.deep_hidden(words)))


class _Layer(nn.Module):
    """One layer: what it reads is (B, K, T, n), and so is what it says."""

    def __init__(self, config: DecoderConfig, *, key_dim: int) -> None:
        super().__init__()
        n = config.hidden_dim
        self.first = config.norm == "pre"
        self.read = Attention(
            score="scaled_dot",
            query_dim=n,
            key_dim=n,
            attention_dim=n,
            value_dim=n,
            heads=config.heads,
        )
        self.look = Attention(
            score=config.score,
            query_dim=n,
            key_dim=key_dim,
            attention_dim=config.attention_dim,
            value_dim=config.value_dim or n,
            heads=config.heads,
        )
        self.read_output = nn.Linear(n, n)
        self.look_output = nn.Linear(self.look.value_dim, n)
        self.think = nn.Sequential(nn.Linear(n, 2 * n), nn.ReLU(), nn.Linear(2 * n, n))
        self.norms = nn.ModuleList(nn.LayerNorm(n) for _ in range(3))
        if self.first and config.score == "none":
            self.norms[1] = nn.Identity()  # nobody reads the queries
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, words: Tensor, before: ProjectedGrid, grid: ProjectedGrid, *, tell: bool
    ) -> tuple[Tensor, ProjectedGrid, Tensor]:
        """Read T words (B, K, T, n).

        Args:
            words: the newest T of the sentences.
            before: keys and values (B, K, t, n) of the words before them.
            grid: keys and values of the grid, of this layer.
            tell: whether the attention weights over the grid are wanted.

        Returns:
            The words (B, K, T, n); keys and values (B, K, t + T, n); the weights (B, K, T, H, L),
            or the words again where they are not wanted.

        """
        entering = self._enter(words, 0)
        newest = self.read.project(entering)
        after = ProjectedGrid(
            *(torch.cat(pair, dim=2) for pair in zip(before, newest, strict=True))
        )
        sentences = ProjectedGrid(*(part.flatten(0, 1) for part in after))
        count, total = words.shape[2], after.keys.shape[2]
        mask = None if count == 1 else causal(count, total, device=words.device)
        read = self.read.attend(entering.flatten(0, 1), sentences, mask).view(words.shape)
        words = self._add(words, self.read_output(read), 0)

        queries = self._enter(words, 1).flatten(1, 2)  # the captions of an image share its grid
        weights = words
        if tell:
            context, told = self.look(queries, grid)
            weights = told.view(*words.shape[:3], *told.shape[2:])
        else:
            context = self.look.attend(queries, grid)
        looked = self.look_output(context).view(words.shape)
        words = self._add(words, looked, 1)
        return self._add(words, self.think(self._enter(words, 2)), 2), after, weights

    def _enter(self, words: Tensor, part: int) -> Tensor:
        return cast(Tensor, self.norms[part](words)) if self.first else words

    def _add(self, words: Tensor, said: Tensor, part: int) -> Tensor:
        words = words + self.dropout(said)
        return words if self.first else cast(Tensor, self.norms[part](words))
