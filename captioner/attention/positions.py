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

    Raises ConfigError: so many cells make no square.
    """
    side = math.isqrt(cells)
    if side * side != cells:
        raise ConfigError(f"a grid of {cells} cells is not square: its positions are not known")
    places = torch.arange(side, device=device)
    return torch.cartesian_prod(places, places)


class Positions(nn.Module):
    """Adds to features where they stand, or appends it.

    A code of norm about 1 would be lost beside cells of norm 20, and one of norm 25 would drown
    them. So a code is scaled to be as loud as what it places, times a learned number that begins at
    1; the square root of d that Vaswani et al. multiply words by serves the same end.

    Args:
        kind: a name in POSITIONS.
        dim: D, the numbers of a feature vector.
        axes: the numbers of a place: 1 in a sentence, 2 in a grid.
        length: how many places an axis has at most.
        scaled: False leaves codes as they are, as older checkpoints have them.

    Raises ConfigError: no such kind.
    """

    def __init__(self, *, kind: str, dim: int, axes: int, length: int, scaled: bool = True) -> None:
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
        # The norm of a code: of sines exactly, of drawn vectors and of the bits on average.
        squares = {"sine": self.waves / 2, "learned": 1.0, "binary": self.bits / 2}
        self.norm = math.sqrt(axes * squares.get(kind, 1.0)) or 1.0
        self.scale = nn.Parameter(torch.ones(1)) if scaled and kind != "none" else None

    def forward(self, features: Tensor, *, first: int = 0) -> Tensor:
        """Tell features (..., L, D) their places: (..., L, output_dim).

        In a sentence they stand at `first`, first + 1, ...; in a grid, which is square, row by row.

        Raises ConfigError: the grid is not square, or a place lies beyond the length.
        """
        if self.kind == "none":
            return features
        count, device = features.shape[-2], features.device
        if self.axes == 1:
            last, places = first + count - 1, word_places(count, first=first, device=device)
        else:
            last, places = math.isqrt(count) - 1, grid_places(count, device=device)
        if self.kind != "sine" and last >= self.length:
            raise ConfigError(f"place {last} has no {self.kind} position: there are {self.length}")
        code = self._code(places, features.shape[-1])
        if self.scale is not None:
            code = code * (self.scale / self.norm) * self._loudness(features)
        code = code.to(features.dtype)
        if self.kind == "binary":
            return torch.cat([features, code.expand(*features.shape[:-1], -1)], dim=-1)
        return features + code

    def _code(self, places: Tensor, dim: int) -> Tensor:
        """Give the code of places (L, axes), unscaled: (L, D), or (L, axes * bits) of bits."""
        columns = places.unbind(-1)
        if self.kind == "sine":
            code = torch.cat([sine(column, self.waves) for column in columns], dim=-1)
            return F.pad(code, (0, dim - code.shape[-1]))
        if self.kind == "binary":
            return torch.cat([binary(column, self.bits) for column in columns], dim=-1)
        found = [table[column] for table, column in zip(self.tables, columns, strict=True)]
        return torch.stack(found).sum(dim=0)

    def _loudness(self, features: Tensor) -> Tensor:
        """Give the norm of a word itself, since a step sees no other; of a grid the cells' mean."""
        exact = features.detach().to(torch.promote_types(features.dtype, torch.float32))
        norms: Tensor = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        return norms if self.axes == 1 else norms.mean(dim=-2, keepdim=True)
