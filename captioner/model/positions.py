"""Positional encodings, because attention alone ignores the positions of words and cells.

    none      no encoding
    sine      sines and cosines of the position, added; wavelengths from 2 pi to 10,000 * 2 pi
              (Vaswani et al. 2017, section 3.5)
    learned   a vector for every position, added
    binary    the bits of the position, appended

The position of a word is one number; the position of a grid cell is two, its row and column.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioner.errors import ConfigError

POSITIONS = ("none", "sine", "learned", "binary")
"""The names of the encodings in a decoder's configuration."""

GRID_SIDE = 64
"""The maximum number of rows and of columns of a grid: 1024 pixels at a stride of 16."""

_LONGEST = 10_000  # the longest wavelength of the sines, over 2 pi


def sine(places: Tensor, dim: int) -> Tensor:
    """Return sin(w_i p) and cos(w_i p) of positions p (...): (..., dim), float32; `dim` is even.

    w_i runs from 1 to 1 / 10,000. The encoding of p + delta is that of p with pair i rotated by the
    angle w_i delta. So a fixed linear map turns the encoding of any p into that of p + delta.
    """
    steps = torch.arange(0, dim, 2, device=places.device, dtype=torch.float32)
    angles = places.unsqueeze(-1).float() * torch.exp(steps * (-math.log(_LONGEST) / dim))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def binary(places: Tensor, bits: int) -> Tensor:
    """Return the bits of the positions (...), lowest first: (..., bits), float32."""
    return (places.unsqueeze(-1) >> torch.arange(bits, device=places.device) & 1).float()


class Positions(nn.Module):
    """Adds positional encodings to features, or appends them.

    Encodings are scaled to the norm of the features, times a learned factor that starts at 1.
    Otherwise the features would dominate the encodings, or the reverse. Vaswani et al. multiply
    words by the square root of d for the same purpose.

    Args:
        kind: a name in POSITIONS.
        dim: D, the size of a feature vector.
        axes: how many numbers a position has: 1 in a sentence, 2 in a grid.
        length: the number of positions on an axis.
        scaled: whether encodings are scaled; False for older checkpoints.

    Raises ConfigError: unknown kind.
    """

    def __init__(self, *, kind: str, dim: int, axes: int, length: int, scaled: bool = True) -> None:
        super().__init__()
        if kind not in POSITIONS:
            raise ConfigError(
                f"there are no positions {kind!r}: choose from {', '.join(POSITIONS)}"
            )
        self.kind, self.axes, self.length = kind, axes, length
        self.waves = dim // (2 * axes) * 2  # per axis; the remaining numbers get no encoding
        self.bits = max(1, math.ceil(math.log2(length)))
        self.output_dim = dim + axes * self.bits if kind == "binary" else dim
        self.tables = nn.ParameterList()
        if kind == "learned":
            self.tables.extend(torch.randn(length, dim) * dim**-0.5 for _ in range(axes))
        # The norm of an encoding: exact for sines, the expected one for learned and binary.
        squares = {"sine": self.waves / 2, "learned": 1.0, "binary": self.bits / 2}
        self.norm = math.sqrt(axes * squares.get(kind, 1.0)) or 1.0
        self.scale = nn.Parameter(torch.ones(1)) if scaled and kind != "none" else None

    def forward(self, features: Tensor, *, first: int = 0) -> Tensor:
        """Return features (..., L, D) with their positions encoded: (..., L, output_dim).

        Words of a sentence have the positions `first`, first + 1, ...; the cells of a square grid
        are in row order.

        Raises ConfigError: the grid is not square, or a position is beyond the length.
        """
        if self.kind == "none":
            return features
        count, device = features.shape[-2], features.device
        if self.axes == 1:
            last = first + count - 1
            places = torch.arange(first, first + count, device=device).unsqueeze(-1)
        else:
            last = math.isqrt(count) - 1
            if (last + 1) ** 2 != count:
                raise ConfigError(
                    f"a grid of {count} cells is not square: positional encodings need a square one"
                )
            side = torch.arange(last + 1, device=device)
            places = torch.cartesian_prod(side, side)  # row and column
        if self.kind != "sine" and last >= self.length:
            raise ConfigError(
                f"position {last} is out of range: there are {self.length} {self.kind} positions"
            )
        code = self._code(places, features.shape[-1])
        if self.scale is not None:
            code = code * (self.scale / self.norm) * self._norms(features)
        code = code.to(features.dtype)
        if self.kind == "binary":
            return torch.cat([features, code.expand(*features.shape[:-1], -1)], dim=-1)
        return features + code

    def _code(self, places: Tensor, dim: int) -> Tensor:
        """Return the unscaled encodings of positions (L, axes): (L, D), or (L, axes * bits)."""
        columns = places.unbind(-1)
        if self.kind == "sine":
            code = torch.cat([sine(column, self.waves) for column in columns], dim=-1)
            return F.pad(code, (0, dim - code.shape[-1]))
        if self.kind == "binary":
            return torch.cat([binary(column, self.bits) for column in columns], dim=-1)
        vectors = [table[column] for table, column in zip(self.tables, columns, strict=True)]
        return torch.stack(vectors).sum(dim=0)

    def _norms(self, features: Tensor) -> Tensor:
        """Return the norm of each word, or the mean norm of a grid's cells."""
        exact = features.detach().to(torch.promote_types(features.dtype, torch.float32))
        norms: Tensor = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        return norms if self.axes == 1 else norms.mean(dim=-2, keepdim=True)
