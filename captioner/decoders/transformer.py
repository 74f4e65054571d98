"""The decoder of a transformer: words look at the words before, and at the grid.

Vaswani et al. 2017, section 3.1. In generation, keys and values of the words so far are kept in the
state, so that a step works on the newest word alone. They are kept once for an image: a word is
seen by the hypotheses whose path it lies on, and nothing moves when these follow their parents.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from captioner.attention.attention import Attention, ProjectedGrid, causal, maps
from captioner.attention.positions import GRID_SIDE, Positions
from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import DecoderOutput, WordDecoder
from captioner.decoders.layers import Layer, back_to, grid_layers
from captioner.decoders.state import State, StepOutput

__all__ = ["TransformerDecoder"]

_WORDS = 512  # places that a caption has at most; binary ones are 9 numbers


class TransformerDecoder(WordDecoder):
    """Layers of masked self-attention, attention over the grid, and two matrices with a ReLU.

    The attention that is told is that of the last layer over the grid.
    """

    def __init__(self, config: DecoderConfig, *, grid_dim: int, vocabulary_size: int) -> None:
        super().__init__(config, vocabulary_size=vocabulary_size)
        m, n = config.embedding_dim, config.hidden_dim
        self.grid_layers, grid_dim, positions = grid_layers(config, grid_dim=grid_dim)
        self.enter_grid = nn.Linear(grid_dim, n)
        self.enter_word = nn.Linear(m, n)
        self.grid_positions = Positions(
            kind=positions, dim=n, axes=2, length=GRID_SIDE, scaled=config.scaled_positions
        )
        self.word_positions = Positions(
            kind=config.positions, dim=n, axes=1, length=_WORDS, scaled=config.scaled_positions
        )
        self.place_word = back_to(n, self.word_positions.output_dim)
        self.layers = nn.ModuleList(
            _Layer(config, key_dim=self.grid_positions.output_dim) for _ in range(config.layers)
        )
        self.final_norm = nn.LayerNorm(n) if config.norm == "pre" else nn.Identity()
        self.deep_hidden = nn.Linear(n, m)

    def tabulate(self) -> None:
        """Work out once how each word enters, and what scores it."""
        self._tabulate(first=self.enter_word, last=self.deep_hidden)

    def start(self, features: Tensor) -> State:
        """Project the grids (B, L, D) for every layer, and begin one hypothesis (K = 1) each."""
        image = {}
        for number, grid in enumerate(self._grids(features)):
            image[f"keys{number}"], image[f"values{number}"] = grid
        nothing = features.new_zeros(len(features), 0, 2 * self.config.hidden_dim)
        path = torch.zeros(len(features), 1, 0, dtype=torch.long, device=features.device)
        said = {f"layer{number}": nothing for number in range(self.config.layers)}
        return State(image, {"path": path}, said)

    def step(self, tokens: Tensor, state: State) -> StepOutput:
        """Read the tokens (B, K) and score the next ones."""
        before = state.words["layer0"]
        path = _longer(state.hypothesis["path"], said=before.shape[1])
        mask = _on_path(path, said=before.shape[1] + tokens.shape[1], like=before)
        entered = self._enter(tokens, self.enter_word)
        words = self._placed(entered.unsqueeze(2), first=path.shape[-1] - 1).squeeze(2)
        said: dict[str, Tensor] = {}
        weights = words  # there is at least one layer
        for number, layer in enumerate(self._layers()):
            name = f"layer{number}"
            words, said[name] = layer.read_newest(words, state.words[name], mask)
            grid = ProjectedGrid(state.image[f"keys{number}"], state.image[f"values{number}"])
            words, weights = layer.look_and_think(words, grid, tell=self._is_last(number))
        attention, heads = maps(weights)
        logits = self._leave(self.final_norm(words), self.deep_hidden)
        return StepOutput(logits, State(state.image, {"path": path}, said), attention, None, heads)

    def forward(self, features: Tensor, tokens: Tensor) -> DecoderOutput:
        """Teacher forcing: read the tokens (B, K, T) of K captions of each image's grid (B, L, D).

        The output at t is for the token that follows tokens[..., t]; all T at once.
        """
        words, weights, _ = self._read_captions(features, tokens)
        deep = self.dropout(self.deep_hidden(self.final_norm(words)))
        attention, heads = maps(weights.view(*tokens.shape, *weights.shape[2:]))
        return DecoderOutput(deep, attention, None, heads)

    def word_attention(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Show how tokens (B, K, T) look at each other in the last layer: (B, K, H, T, T)."""
        _, _, entering = self._read_captions(features, tokens)
        mask = causal(tokens.shape[-1], tokens.shape[-1], device=tokens.device)
        last = self._layers()[-1]
        words = last.enter(entering, 0)
        weights = last.read.weigh(words, last.read.project(words).keys, mask)  # (B * K, T, H, T)
        return weights.view(*tokens.shape, *weights.shape[2:]).transpose(2, 3)

    def _read_captions(self, features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bring the tokens (B, K, T) through all layers.

        Returns the words (B, K, T, n), the weights (B, K * T, H, L) of the last layer over the
        grid, and the words as they came to the last layer (B * K, T, n).
        """
        length = tokens.shape[-1]
        words = self._placed(self.enter_word(self._embed(tokens)))
        mask = causal(length, length, device=tokens.device)
        weights = entering = words
        for number, (layer, grid) in enumerate(
            zip(self._layers(), self._grids(features), strict=True)
        ):
            entering = words.flatten(0, 1)  # each caption reads itself
            own = layer.read_all(entering, mask)
            flat = own.view(words.shape).flatten(1, 2)  # the captions of an image share its grid
            flat, weights = layer.look_and_think(flat, grid, tell=self._is_last(number))
            words = flat.view(words.shape)
        return words, weights, entering

    def _grids(self, features: Tensor) -> list[ProjectedGrid]:
        """Project the grids (B, L, D) for every layer."""
        cells = self.grid_positions(self.enter_grid(self.grid_layers(features)))
        return [layer.look.project(cells) for layer in self._layers()]

    def _placed(self, words: Tensor, *, first: int = 0) -> Tensor:
        """Tell words (B, K, T, n), whose first stands at that place, where they are."""
        return cast(Tensor, self.place_word(self.word_positions(words, first=first)))

    def _is_last(self, number: int) -> bool:
        return number == self.config.layers - 1

    def _layers(self) -> list[_Layer]:
        return cast("list[_Layer]", list(self.layers))


class _Layer(Layer):
    """Words (B, ..., n) read each other, look at the grid, and think."""

    def __init__(self, config: DecoderConfig, *, key_dim: int) -> None:
        super().__init__(config, parts=3)
        n = config.hidden_dim
        self.look = Attention(
            score=config.score,
            query_dim=n,
            key_dim=key_dim,
            attention_dim=config.attention_dim,
            value_dim=config.value_dim or n,
            heads=config.heads,
        )
        self.look_output = nn.Linear(self.look.value_dim, n)
        if self.first and config.score == "none":
            self.norms[1] = nn.Identity()  # nobody reads the queries

    def read_newest(
        self, words: Tensor, before: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Let the newest words (B, K, n) read what was said; see SelfAttention.read_newest."""
        read, said = self.read.read_newest(self.enter(words, 0), before, mask)
        return self.add(words, self.read_output(read), 0), said

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


def _longer(path: Tensor, *, said: int) -> Tensor:
    """Let the paths (B, K, t) go on to the newest words, which stand behind those said before."""
    own = torch.arange(said, said + path.shape[1], device=path.device)
    return torch.cat([path, own[None, :, None].expand(len(path), -1, -1)], dim=-1)


def _on_path(path: Tensor, *, said: int, like: Tensor) -> Tensor | None:
    """Give what is added to scores over all that is said (B, K, S): 0 for the words of a path.

    Elsewhere -inf. None where each path (B, K, t) has all words, as with a single hypothesis.
    """
    images, count, length = path.shape
    if length == said:
        return None
    return like.new_full((images, count, said), -torch.inf).scatter_(-1, path, 0.0)
