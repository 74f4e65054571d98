"""Positional encodings: attention sees a set, and this tells its members where they stand.

    none      nothing
    sine      sines and cosines of the place at wavelengths from 2 pi to 10,000 * 2 pi, added
              (Vaswani et al. 2017, section 3.5)
    learned   a vector for every place, added
    binary    the bits of the place, appended

A place has one number in a sentence and two, row and column, in a grid.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.errors import ConfigError

__all__ = [
    "GRID_SIDE",
    "POSITIONS",
    "Positions",
    "binary",
    "grid_places",
    "sine",
    "word_places",
]

POSITIONS = ("none", "sine", "learned", "binary")
"""The encodings by the name that a decoder's configuration takes."""

GRID_SIDE = 64
"""The most rows and columns of a grid: 1024 pixels at a stride of 16."""

_LONGEST = 10_000  # times 2 pi: the longest wavelength of the sines


def sine(places: Tensor, dim: int) -> Tensor:
    """Give sin(w_i p) and cos(w_i p) side by side, with w_i from 1 down to 1 / 10,000.

    The encoding of p + delta is that of p with each pair turned by the angle w_i delta, wherever p
    is: a linear map can look a fixed distance back.

    Args:
        places: (...).
        dim: even.

    Returns:
        (..., dim), float32.

    """
    steps = torch.arange(0, dim, 2, device=places.device, dtype=torch.float32)
    angles = places.unsqueeze(-1).float() * torch.exp(steps * (-math.log(_LONGEST) / dim))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def binary(places: Tensor, bits: int) -> Tensor:
    """Give the bits of the places (...), the lowest first: (..., bits), float32."""
    return (places.unsqueeze(-1) >> torch.arange(bits, device=places.device) & 1).float()


def word_places(words: int, *, first: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Give the places of words in a sentence: (words, 1)."""
    return torch.arange(first, first + words, device=device).unsqueeze(-1)


def grid_places(cells: int, *, device: torch.device | str = "cpu") -> Tensor:
    """Give row and column of the cells of a square grid, row-major: (cells, 2).

    Raises:
        ConfigError: so many cells make no square.

    """
    side = math.isqrt(cells)
    if side * side != cells:
        raise ConfigError(f"a grid of {cells} cells is not square: its positions are not known")
    places = torch.arange(side, device=device)
    return torch.cartesian_prod(places, places)


class Positions(nn.Module):
    """Adds to features where they stand, or appends it.

    Args:
        kind: a name in POSITIONS.
        dim: D, the numbers of a feature vector.
        axes: the numbers of a place: 1 in a sentence, 2 in a grid.
        length: how many places an axis has at most.

    Raises:
        ConfigError: no such kind.

    """

    def __init__(self, *, kind: str, dim: int, axes: int, length: int) -> None:
        super().__init__()
        if kind not in POSITIONS:
            raise ConfigError(f"positions {kind!r} are not known; known are {', '.join(POSITIONS)}")
        self.kind, self.axes, self.length = kind, axes, length
        self.waves = dim // (2 * axes) * 2  # of an axis; what is left over of D stays as it is
        self.bits = max(1, math.ceil(math.log2(length)))
        self.output_dim = dim + axes * self.bits if kind == "binary" else dim
        self.tables = nn.ParameterList()
        if kind == "learned":
            self.tables.extend(torch.randn(length, dim) * dim**-0.5 for _ in range(axes))

    def forward(self, features: Tensor, places: Tensor) -> Tensor:
        """Tell features (..., L, D) their places (L, axes): (..., L, output_dim).

        Raises:
            ConfigError: a place lies beyond the length.

        """
        if self.kind == "none":
            return features
        if self.kind in ("learned", "binary") and int(places.max()) >= self.length:
            raise ConfigError(
                f"place {int(places.max())} has no {self.kind} position: there are {self.length}"
            )
        columns = places.unbind(-1)
        if self.kind == "sine":
            code = torch.cat([sine(column, self.waves) for column in columns], dim=-1)
            padded = F.pad(code, (0, features.shape[-1] - code.shape[-1]))
            return features + padded.to(features.dtype)
        if self.kind == "learned":
            for table, column in zip(self.tables, columns, strict=True):
                features = features + table[column]
            return features
        code = torch.cat([binary(column, self.bits) for column in columns], dim=-1)
        code = code.to(features.dtype).expand(*features.shape[:-1], -1)
        return torch.cat([features, code], dim=-1)

    def in_grid(self, features: Tensor) -> Tensor:
        """Tell the cells of square grids (B, L, D), row-major, their places: (B, L, output_dim).

        Raises:
            ConfigError: the grid is not square, or has more rows than the length.

        """
        if self.kind == "none":
            return features
        encoded: Tensor = self(features, grid_places(features.shape[-2], device=features.device))
        return encoded
