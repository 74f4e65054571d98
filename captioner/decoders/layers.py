"""Layers of a transformer: what words and cells have in common (Vaswani et al. 2017, section 3.1).

`GridLayers` lets the cells of a grid look at each other, before any decoder looks at them.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from captioner.attention.attention import Attention, attend_fused
from captioner.attention.positions import GRID_SIDE, Positions
from captioner.attention.scores import ProductScore
from captioner.decoders.config import DecoderConfig

__all__ = ["GridLayers", "Layer", "SelfAttention", "back_to", "grid_layers"]


class SelfAttention(Attention):
    """Scaled dot products, with queries, keys and values of the same words.

    Args:
        dim: n, the numbers of a word.
        heads: H, which share them.
    """

    def __init__(self, *, dim: int, heads: int) -> None:
        super().__init__(
            score="scaled_dot",
            query_dim=dim,
            key_dim=dim,
            attention_dim=dim,
            value_dim=dim,
            heads=heads,
        )

    def read_newest(
        self, words: Tensor, before: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Let the newest words read themselves and those before them.

        Args:
            words: (B, K, n), the newest of each hypothesis.
            before: (B, S, 2n), keys and values of the words that any hypothesis has said.
            mask: (B, K, S + K), 0 where a word is of the hypothesis, -inf elsewhere; None: all are.

        Returns:
            The context (B, K, n), and keys and values with the newest (B, S + K, 2n).
        """
        queries = cast(ProductScore, self.score).project_query(words)
        said = torch.cat([before, torch.cat(self.project(words), dim=-1)], dim=1)
        keys, values = said.chunk(2, dim=-1)
        return attend_fused(queries, keys, values, heads=self.score.heads, mask=mask), said


class Layer(nn.Module):
    """Parts that each add to what comes in: self-attention, what a subclass adds, two matrices.

    Args:
        config: n, heads, dropout, and where the norm stands.
        parts: how many parts, each with a norm.
    """

    def __init__(self, config: DecoderConfig, *, parts: int) -> None:
        super().__init__()
        n = config.hidden_dim
        self.first = config.norm == "pre"
        self.read = SelfAttention(dim=n, heads=config.heads)
        self.read_output = nn.Linear(n, n)
        self.think = nn.Sequential(nn.Linear(n, 2 * n), nn.ReLU(), nn.Linear(2 * n, n))
        self.norms = nn.ModuleList(nn.LayerNorm(n) for _ in range(parts))
        self.dropout = nn.Dropout(config.dropout)

    def read_all(self, members: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let the members of a set or sentence (B, L, n) read each other, and give them back."""
        entering = self.enter(members, 0)
        read = self.read.attend(entering, self.read.project(entering), mask)
        return self.add(members, self.read_output(read), 0)

    def enter(self, members: Tensor, part: int) -> Tensor:
        """Give members as one of the parts reads them."""
        return cast(Tensor, self.norms[part](members)) if self.first else members

    def add(self, members: Tensor, said: Tensor, part: int) -> Tensor:
        """Add to members what one of the parts says of them."""
        members = members + self.dropout(said)
        return members if self.first else cast(Tensor, self.norms[part](members))


class GridLayers(nn.Module):
    """Layers of self-attention between the cells of a grid, as in the transformer's encoder.

    The cells are told their places before they look at each other.
    """

    def __init__(self, config: DecoderConfig, *, grid_dim: int) -> None:
        super().__init__()
        n = config.hidden_dim
        self.enter = nn.Linear(grid_dim, n)
        self.positions = Positions(
            kind=config.positions, dim=n, axes=2, length=GRID_SIDE, scaled=config.scaled_positions
        )
        self.place = back_to(n, self.positions.output_dim)
        self.layers = nn.ModuleList(Layer(config, parts=2) for _ in range(config.encoder_layers))
        self.norm = nn.LayerNorm(n) if config.norm == "pre" else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        """Turn grids (B, L, D) into grids (B, L, n) whose cells know of each other."""
        cells = self.place(self.positions(self.enter(features)))
        for layer in cast("list[Layer]", list(self.layers)):
            cells = layer.read_all(cells)
            cells = layer.add(cells, layer.think(layer.enter(cells, 1)), 1)
        return cast(Tensor, self.norm(cells))


def grid_layers(config: DecoderConfig, *, grid_dim: int) -> tuple[nn.Module, int, str]:
    """Make the layers of `encoder_layers`, which turn grids (B, L, D) into grids (B, L, D').

    Returns:
        The layers, nothing where there are none; D'; and the positions that are yet to be told.
    """
    if config.encoder_layers == 0:
        return nn.Identity(), grid_dim, config.positions
    return GridLayers(config, grid_dim=grid_dim), config.hidden_dim, "none"


def back_to(width: int, given: int) -> nn.Module:
    """Bring members with appended bits back to the width of the layers."""
    return nn.Identity() if given == width else nn.Linear(given, width)
