"""The decoder of a transformer: words look at the words before, and at the grid.

Vaswani et al. 2017, section 3.1. In generation, keys and values of the words so far are kept in the
state, so that a step works on the newest word alone. They are kept once for an image: a word is
seen by the hypotheses whose path it lies on, and nothing moves when these follow their parents.
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
        image = {}
        for number, grid in enumerate(self._grids(features)):
            image[f"keys{number}"], image[f"values{number}"] = grid
        memory = features.new_zeros(
            len(features), 0, 2 * self.config.layers * self.config.hidden_dim
        )
        path = torch.zeros(len(features), 1, 0, dtype=torch.long, device=features.device)
        return State(image, {"path": path}, {"memory": memory})

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""
        memory, path = state.words["memory"], state.hypothesis["path"]
        said, count = memory.shape[1], tokens.shape[1]
        own = torch.arange(said, said + count, device=tokens.device)
        path = torch.cat([path, own[None, :, None].expand(len(path), -1, -1)], dim=-1)
        mask = None  # where all that was said is its own: in a search with a single hypothesis
        if path.shape[-1] < said + count:
            mask = torch.zeros(*tokens.shape, said + count, dtype=torch.bool, device=tokens.device)
            mask.scatter_(-1, path, True)
        words = self._entered(tokens.unsqueeze(-1), first=path.shape[-1] - 1).squeeze(2)
        newest: list[Tensor] = []
        before = memory.chunk(2 * self.config.layers, dim=-1)
        weights = words  # there is at least one layer
        for number, layer in enumerate(self._layers()):
            entering = layer.enter(words, 0)
            both = layer.read.project(entering)
            newest += both
            pairs = zip(before[2 * number :], both, strict=False)
            sentences = ProjectedGrid(*(torch.cat(pair, dim=1) for pair in pairs))
            words = layer.add(
                words, layer.read_output(layer.read.attend(entering, sentences, mask)), 0
            )
            grid = ProjectedGrid(state.image[f"keys{number}"], state.image[f"values{number}"])
            words, weights = layer.look_and_think(words, grid, tell=self._is_last(number))
        memory = torch.cat([memory, torch.cat(newest, dim=-1)], dim=1)
        attention, heads = maps(weights)
        logits = self._step_logits(self._deep_output(self.final_norm(words)))
        following = State(state.image, {"path": path}, {"memory": memory})
        return StepOutput(logits, following, attention, None, heads)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: read the tokens (B, K, T) of K captions of each image's grid (B, L, D).

        The output at t is for the token that follows tokens[..., t]; all T at once.
        """
        images, captions, length = tokens.shape
        words = self._entered(tokens)
        mask = causal(length, length, device=tokens.device)
        weights = words
        for number, (layer, grid) in enumerate(
            zip(self._layers(), self._grids(features), strict=True)
        ):
            entering = layer.enter(words, 0).flatten(0, 1)  # each caption reads itself
            read = layer.read.attend(entering, layer.read.project(entering), mask)
            words = layer.add(words, layer.read_output(read).view(words.shape), 0)
            flat = words.flatten(1, 2)  # the captions of an image share its grid
            flat, weights = layer.look_and_think(flat, grid, tell=self._is_last(number))
            words = flat.view(words.shape)
        weights = weights.view(images, captions, length, *weights.shape[2:])
        return DecoderOutput(self._deep_output(self.final_norm(words)), maps(weights)[0])

    def _grids(self, features: Tensor) -> list[ProjectedGrid]:
        """Project the grids (B, L, D) for every layer."""
        cells = self.grid_positions.in_grid(self.enter_grid(features))
        return [layer.look.project(cells) for layer in self._layers()]

    def _entered(self, tokens: Tensor, *, first: int = 0) -> Tensor:
        """Embed the tokens (B, K, T), whose first stands at that place: (B, K, T, n)."""
        places = word_places(tokens.shape[-1], first=first, device=tokens.device)
        words = self.word_positions(self.enter_word(self._embed(tokens)), places)
        return cast(Tensor, self.place_word(words))

    def _is_last(self, number: int) -> bool:
        return number == self.config.layers - 1

    def _layers(self) -> list[_Layer]:
        return cast("list[_Layer]", list(self.layers))

    def _deep_output(self, words: Tensor) -> Tensor:
        return cast(Tensor, self.dropout(self.deep_hidden(words)))


class _Layer(nn.Module):
    """One layer: its parts, and what is done with them for any words (B, ..., n)."""

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

    def look_and_think(
        self, words: Tensor, grid: ProjectedGrid, *, tell: bool
    ) -> tuple[Tensor, Tensor]:
        """Let words (B, Q, n), which have read each other, look at the grid, and think.

        Args:
            words: any number of them an image.
            grid: keys and values of the grid, of this layer.
            tell: whether the attention weights over the grid are wanted.

        Returns:
            The words (B, Q, n); the weights (B, Q, H, L), or the words again where they are not
            wanted.

        """
        queries, weights = self.enter(words, 1), words
        if tell:
            context, weights = self.look(queries, grid)
        else:
            context = self.look.attend(queries, grid)
        words = self.add(words, self.look_output(context), 1)
        return self.add(words, self.think(self.enter(words, 2)), 2), weights

    def enter(self, words: Tensor, part: int) -> Tensor:
        """Give words as one of the three parts reads them."""
        return cast(Tensor, self.norms[part](words)) if self.first else words

    def add(self, words: Tensor, said: Tensor, part: int) -> Tensor:
        """Add to words what one of the three parts says of them."""
        words = words + self.dropout(said)
        return words if self.first else cast(Tensor, self.norms[part](words))
