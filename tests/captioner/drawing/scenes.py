"""Photos and attention for the tests of drawing, made on the spot."""

from __future__ import annotations

import torch
from PIL import Image, ImageChops

from captioner.drawing.overlay import Panel

UNIFORM = torch.full((7, 7), 1 / 49)


def one_hot(rows: int, columns: int, row: int, column: int) -> torch.Tensor:
    weights = torch.zeros(rows, columns)
    weights[row, column] = 1
    return weights


def scene(size: tuple[int, int]) -> Image.Image:
    """A photo in which no two neighbouring pixels are alike."""
    across = Image.linear_gradient("L").rotate(90).resize(size)
    down = Image.linear_gradient("L").resize(size)
    return Image.merge("RGB", [across, down, ImageChops.difference(across, down)])


def same(a: Image.Image, b: Image.Image) -> bool:
    return (a.mode, a.size, a.tobytes()) == (b.mode, b.size, b.tobytes())


def panels(*words: str) -> list[Panel]:
    return [Panel(word, 0.5, one_hot(5, 5, i % 5, 2)) for i, word in enumerate(words)]
