"""Where the model looked, as a picture: attention -> upsample -> blend; contact sheet, animation.

Weights are anything with `.tolist()`, such as a tensor of shape (rows, columns), or nested
sequences. A box is the part of the photo that the grid covers, as (left, top, right, bottom) in
fractions of its width and height: inside 0..1 for a centre crop, beyond it for a padded photo.
Photos are PIL images of any mode, turned the way the viewer sees them, and never modified.
What heat means, and why it is not stretched to each word's maximum: see `captioner.drawing.colors`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from captioner.drawing.colors import DEFAULT_COLORS, Weights, blend, heat_grid
from captioner.drawing.lettering import PAPER, Text, draw_cell, draw_key
from captioner.errors import ConfigError

__all__ = [
    "DEFAULT_STRENGTH",
    "Panel",
    "animation",
    "attention_map",
    "contact_sheet",
    "overlay",
]

_Box = tuple[float, float, float, float]
_Size = tuple[int, int]

DEFAULT_STRENGTH = 0.75
"""Strong enough to be seen on any photo; a quarter of what was looked at still shows through."""

_WHOLE: _Box = (0.0, 0.0, 1.0, 1.0)


class Panel(NamedTuple):
    """One word of a caption, how sure the model was (0..1 or None), and where it looked."""

    word: str
    probability: float | None
    weights: Weights


def attention_map(
    weights: Weights, size: _Size, *, box: _Box = _WHOLE, smooth: bool = True
) -> Image.Image:
    """Draw one word's attention at a photo's size (width, height), as an "L" image.

    255 is `colors.FULL_HEAT` times the even share of attention or more, each halving is a third
    less, and 0 is the even share or less, and all that lies outside the box. `smooth` interpolates
    between the centres of the cells; otherwise each cell is a rectangle with crisp edges,
    which is all that the model knows.

    Raises ConfigError if the weights are not a table of numbers >= 0, or the box has no inside.
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
    box: _Box = _WHOLE,
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


def contact_sheet(
    photo: Image.Image,
    panels: Sequence[Panel],
    *,
    title: str | None = None,
    box: _Box = _WHOLE,
    smooth: bool = True,
    strength: float = DEFAULT_STRENGTH,
    colors: str = DEFAULT_COLORS,
    panel_side: int = 260,
    columns: int | None = None,
) -> Image.Image:
    """Draw a caption on one "RGB" sheet: the photo, a panel for each word, the key to the heat.

    There may be no panels. The title, usually the caption, is set large above them. `panel_side`
    is the side in pixels of a square photo's panel: wide and tall photos get panels of the same
    area, and type and spacing grow with it. `columns` is the number of panels in a row; None
    finds one that makes a well-shaped sheet. The other options are those of `overlay`.

    Raises ConfigError for a panel_side below 32, columns below 1, and what `overlay` does not
    take.
    """
    if panel_side < 32 or (columns is not None and columns < 1):
        raise ConfigError(f"panel_side ({panel_side}) starts at 32, columns ({columns}) at 1")
    unit = panel_side / 260
    aspect = math.sqrt(min(max(photo.width / photo.height, 1 / 4), 4))
    small = _fit(photo, (panel_side * aspect, panel_side / aspect), enlarge=4)
    cell = (max(small.width, panel_side // 2), small.height + round(50 * unit))
    gap, margin, count = round(28 * unit), round(40 * unit), len(panels) + 1
    columns = min(columns or _columns(count, cell), count)
    width = max(columns * (cell[0] + gap) - gap, round(1.4 * panel_side))
    heading = Text.flow((title or "").split(), round(32 * unit), width, space=0.28)
    top = margin + (heading.height + gap if title else 0)
    height = top + math.ceil(count / columns) * (cell[1] + gap) + round(24 * unit) + margin
    sheet = Image.new("RGB", (width + 2 * margin, height), PAPER)
    heading.draw(sheet, (margin, margin))
    for index in range(count):
        row, column = divmod(index, columns)
        corner = (margin + column * (cell[0] + gap), top + row * (cell[1] + gap))
        picture, panel = small, panels[index - 1] if index else None
        if panel:
            heat = attention_map(panel.weights, small.size, box=box, smooth=smooth)
            picture = blend(small, heat, colors=colors, strength=strength)
        word, probability = (panel.word, panel.probability) if panel else (None, None)
        draw_cell(sheet, corner, cell[0], picture, unit, word=word, probability=probability)
    draw_key(sheet, (margin, height - margin), unit, colors=colors, strength=strength)
    return sheet


def animation(
    photo: Image.Image,
    panels: Sequence[Panel],
    *,
    box: _Box = _WHOLE,
    smooth: bool = True,
    strength: float = DEFAULT_STRENGTH,
    colors: str = DEFAULT_COLORS,
    side: int = 640,
    seconds_per_word: float = 0.8,
) -> list[Image.Image]:
    """Draw a caption as frames: the photo, the overlay of each word in turn, the whole caption.

    The caption stands beneath the photo, the present word marked. Returns len(panels) + 2 "RGB"
    images of one size (without panels, the photo alone), none wider or taller than `side` pixels;
    the photo is shown at no more than twice its size. A frame's time, in milliseconds, is in its
    `info["duration"]`, where `saving` finds it; the last frame stays three times as long.
    The other options are those of `overlay`.

    Raises ConfigError for a side below 128, a time not above 0, and what `overlay` does not take.
    """
    if side < 128 or not 0 < seconds_per_word < math.inf:
        raise ConfigError(f"side ({side}) starts at 128, seconds ({seconds_per_word}) above 0")
    picture, text, size = _stage([panel.word for panel in panels], photo, side)
    pictures = [picture]
    for panel in panels:
        heat = attention_map(panel.weights, picture.size, box=box, smooth=smooth)
        pictures.append(blend(picture, heat, colors=colors, strength=strength))
    frames = []
    for index, shown in enumerate([*pictures, picture] if panels else pictures):
        frame = Image.new("RGB", size, PAPER)
        frame.paste(shown, ((size[0] - shown.width) // 2, 0))
        text.draw(frame, (text.size, picture.height + text.size // 2), said=index - 1)
        seconds = seconds_per_word * (3 if index > len(panels) else 1)
        frame.info["duration"] = max(20, round(1000 * seconds))  # players distrust less
        frames.append(frame)
    return frames


def _span(pixels: int, cells: int, low: float, high: float) -> tuple[int, int, float, float]:
    """Find along one side the pixels whose centres the box covers, and their place in the grid.

    Returns (first, end) in whole pixels of the photo and (start, stop) in cells.
    """
    if not low < high or not math.isfinite(high - low):
        raise ConfigError(f"a box from {low} to {high} has no inside")
    first, end = (min(max(math.ceil(edge * pixels - 0.5), 0), pixels) for edge in (low, high))
    start, stop = ((edge / pixels - low) / (high - low) * cells for edge in (first, end))
    return first, end, max(start, 0.0), min(stop, float(cells))


def _fit(photo: Image.Image, bounds: tuple[float, float], *, enlarge: float) -> Image.Image:
    """Make the photo "RGB" and as large as fits the bounds, enlarged at most so many times."""
    scale = min(bounds[0] / photo.width, bounds[1] / photo.height, enlarge)
    size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
    return photo.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def _columns(count: int, cell: _Size) -> int:
    """Choose the columns that bring `count` cells near 3:2 and leave few places empty."""

    def ugliness(columns: int) -> float:
        rows = math.ceil(count / columns)
        shape = columns * cell[0] / (rows * cell[1])
        return abs(math.log(shape / 1.5)) + (rows * columns - count) / count

    return min(range(1, count + 1), key=ugliness)


def _stage(words: Sequence[str], photo: Image.Image, side: int) -> tuple[Image.Image, Text, _Size]:
    """Lay out an animation: the picture, the caption beneath it and the size of a frame."""

    def caption(size: int, width: int) -> Text:
        return Text.flow(words, size, width - 2 * size, space=0.46, center=True)

    width = max(_fit(photo, (side, side), enlarge=2).width, side // 2)
    sizes = range(max(16, side // 25), 9, -1)
    texts = (caption(size, width) for size in sizes)
    text = next((text for text in texts if text.height <= side // 3), caption(sizes[-1], width))
    picture = _fit(photo, (width, max(side - text.height - text.size, side // 4)), enlarge=2)
    # The caption took height, and so the picture lost width: draw the frame in around it.
    narrow = max(picture.width, side // 2)
    if (tighter := caption(text.size, narrow)).height == text.height:
        text, width = tighter, narrow
    return picture, text, (width, picture.height + text.height + text.size)
