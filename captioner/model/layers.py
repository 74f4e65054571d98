"""Transformer layers for words and for grid cells (Vaswani et al. 2017, section 3.1)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from captioner.model.attention import Attention
from captioner.model.config import DecoderConfig
from captioner.model.positions import GRID_SIDE, Positions


class Layer(nn.Module):
    """Residual sublayers, each with a norm: self-attention, others, a feed-forward network."""

    def __init__(self, config: DecoderConfig, *, sublayers: int) -> None:
        super().__init__()
        n = config.hidden_dim
        self.pre_norm = config.norm == "pre"
        self.self_attention = Attention(
            score="scaled_dot",
            query_dim=n,
            key_dim=n,
            attention_dim=n,
            value_dim=n,
            heads=config.heads,
        )
        self.self_attention_output = nn.Linear(n, n)
        self.feed_forward = nn.Sequential(nn.Linear(n, 2 * n), nn.ReLU(), nn.Linear(2 * n, n))
        self.norms = nn.ModuleList(nn.LayerNorm(n) for _ in range(sublayers))
        self.dropout = nn.Dropout(config.dropout)

    def self_attend(self, members: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply self-attention to the members (B, L, n) of a set or sentence."""
        queries = self.sublayer_input(members, 0)
        context = self.self_attention.attend(queries, self.self_attention.project(queries), mask)
        return self.residual(members, self.self_attention_output(context), 0)

    def sublayer_input(self, members: Tensor, index: int) -> Tensor:
        """Normalise the input of a sublayer, if norms come before sublayers (pre-norm)."""
        return cast(Tensor, self.norms[index](members)) if self.pre_norm else members

    def residual(self, members: Tensor, output: Tensor, index: int) -> Tensor:
        """Add the output of a sublayer to its input, and normalise the sum for post-norm."""
        members = members + self.dropout(output)
        return members if self.pre_norm else cast(Tensor, self.norms[index](members))


class GridLayers(nn.Module):
    """The encoder of a transformer, over the cells of a grid with positional encodings."""

    def __init__(self, config: DecoderConfig, *, grid_dim: int) -> None:
        super().__init__()
        n = config.hidden_dim
        self.input_projection = nn.Linear(grid_dim, n)
        self.positions = Positions(
            kind=config.positions, dim=n, axes=2, length=GRID_SIDE, scaled=config.scaled_positions
        )
        self.position_projection = project_back(n, self.positions.output_dim)
        self.layers = nn.ModuleList(
            Layer(config, sublayers=2) for _ in range(config.encoder_layers)
        )
        self.norm = nn.LayerNorm(n) if config.norm == "pre" else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        """Turn grids (B, L, D) into grids (B, L, n)."""
        cells = self.position_projection(self.positions(self.input_projection(features)))
        for layer in cast("list[Layer]", list(self.layers)):
            cells = layer.self_attend(cells)
            cells = layer.residual(cells, layer.feed_forward(layer.sublayer_input(cells, 1)), 1)
        return cast(Tensor, self.norm(cells))


def grid_layers(config: DecoderConfig, *, grid_dim: int) -> tuple[nn.Module, int, str]:
    """Make the `encoder_layers`, which turn grids (B, L, D) into grids (B, L, D').

    Returns the layers, D', and the kind of positions that the decoder still has to add.
    """
    if config.encoder_layers == 0:
        return nn.Identity(), grid_dim, config.positions
    return GridLayers(config, grid_dim=grid_dim), config.hidden_dim, "none"


def project_back(width: int, given: int) -> nn.Module:
    """Return a layer that maps size `given`, which may include position bits, to size `width`."""
    return nn.Identity() if given == width else nn.Linear(given, width)
