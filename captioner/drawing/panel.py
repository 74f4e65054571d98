"""What sheets and animations are made of: a word with its attention, and the photo made to fit."""

from __future__ import annotations

from typing import NamedTuple

from PIL import Image

from captioner.drawing.colors import Weights

__all__ = ["Panel", "fit"]


class Panel(NamedTuple):
    """One word of a caption, how sure the model was (0..1 or None), and where it looked.

    guessed: whether it came from the words before it rather than from the photo.
    """

    word: str
    probability: float | None
    weights: Weights
    guessed: bool = False


def fit(photo: Image.Image, bounds: tuple[float, float], *, enlarge: float) -> Image.Image:
    """Make the photo "RGB" and as large as fits the bounds, enlarged at most so many times."""
    scale = min(bounds[0] / photo.width, bounds[1] / photo.height, enlarge)
    size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
    return photo.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
