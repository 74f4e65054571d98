"""Where the model looked, as a picture: attention -> upsample -> blend.

Weights are anything with `.tolist()`, such as a tensor of shape (rows, columns), or nested
sequences. A box is the part of the photo that the grid covers; see captioner.vision.transform.Box.
Photos are PIL images of any mode, turned the way the viewer sees them, and never modified.
What heat means, and why it is not stretched to each word's maximum: see `captioner.drawing.colors`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from PIL import Image

from captioner.drawing.colors import DEFAULT_COLORS, Weights, blend, heat_grid
from captioner.errors import ConfigError
from captioner.vision.transform import Box

__all__ = ["DEFAULT_STRENGTH", "WHOLE", "Panel", "attention_map", "fit", "overlay"]

DEFAULT_STRENGTH = 0.75
"""Strong enough to be seen on any photo; a quarter of what was looked at still shows through."""

WHOLE = Box(0.0, 0.0, 1.0, 1.0)
"""The box of a grid that covers the photo exactly."""


class Panel(NamedTuple):
    """What sheets and animations are made of: a word with its attention.

    probability: how sure the model was, 0 to 1, or None.
    guessed: whether the word came from the words before it rather than from the photo.
    """

    word: str
    probability: float | None
    weights: Weights
    guessed: bool = False


def attention_map(
    weights: Weights, size: tuple[int, int], *, box: Box = WHOLE, smooth: bool = True
) -> Image.Image:
    """Draw one word's attention at a photo's size (width, height), as an "L" image.

    255 is `colors.FULL_HEAT` times the even share of attention or more, each halving is a third
    less, and 0 is the even share or less, and all that lies outside the box. `smooth` interpolates
    between the centres of the cells; otherwise each cell is a rectangle with crisp edges,
    which is all that the model knows.

    Raises ConfigError if the weights are not a table of numbers >= 0, or the box is empty.
    """
    grid = heat_grid(weights)
    x0, x1, left, right = _span(size[0], grid.width, box[0], box[2])
    y0, y1, top, bottom = _span(size[1], grid.height, box[1], box[3])
    result = Image.new("L", size)
    if x0 < x1 and y0 < y1:
        # Only the part of the grid that is on the photo is enlarged: a padded panorama costs no
        # more than its own pixels. Float mode keeps what bicubic undershoots until convert()
        # cuts it off at 0; where two undershoots cross, a ripple of up to 4 is left, which the
        # ramp from 4 to 16 takes away without an edge.
        method = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
        heat = grid.resize((x1 - x0, y1 - y0), method, box=(left, top, right, bottom))
        still = [min(level, max(0, (level - 4) * 4 // 3)) for level in range(256)]
        result.paste(heat.convert("L").point(still), (x0, y0))
    return result


def overlay(
    photo: Image.Image,
    weights: Weights,
    *,
    box: Box = WHOLE,
    smooth: bool = True,
    strength: float = DEFAULT_STRENGTH,
    colors: str = DEFAULT_COLORS,
) -> Image.Image:
    """Lay one word's attention over the photo, as a new "RGB" image of the photo's size.

    `box` and `smooth` are those of `attention_map`; `strength` runs from 0 (the photo alone) to 1
    (opaque); `colors` is one of `captioner.drawing.colors.COLORS`.

    Raises ConfigError for unknown colours, a strength outside 0..1, and what `attention_map`
    does not take.
    """
    heat = attention_map(weights, photo.size, box=box, smooth=smooth)
    return blend(photo, heat, colors=colors, strength=strength)


def fit(photo: Image.Image, bounds: tuple[float, float], *, enlarge: float) -> Image.Image:
    """Make the photo "RGB" and as large as fits the bounds, enlarged at most so many times."""
    scale = min(bounds[0] / photo.width, bounds[1] / photo.height, enlarge)
    size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
    return photo.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def _span(pixels: int, cells: int, low: float, high: float) -> tuple[int, int, float, float]:
    """Find along one side the pixels whose centres the box covers, and their place in the grid.

    Returns (first, end) in whole pixels of the photo and (start, stop) in cells.
    """
    if not low < high or not math.isfinite(high - low):
        raise ConfigError(f"a box from {low} to {high} is empty")
    first, end = (min(max(math.ceil(edge * pixels - 0.5), 0), pixels) for edge in (low, high))
    start, stop = ((edge / pixels - low) / (high - low) * cells for edge in (first, end))
    return first, end, max(start, 0.0), min(stop, float(cells))
