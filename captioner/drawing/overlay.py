"""Overlays: draw attention weights as colours over a photo.

Attention weights sum to 1 over a grid of n cells, so the even share is 1/n. The colour depends on
the heat, which is logarithmic: 0 up to the even share, 1/3 at twice the even share, 2/3 at four
times, and 1 (full heat) from eight times. The scale is the same for all words and photos.
Stretching each word to its own maximum would make diffuse attention look like focused attention.

Four colour scales are perceptually uniform and get lighter with more heat. They remain readable
with colour blindness and in grey. "spotlight" darkens and greys the photo where there is no heat,
like the figures of Show, Attend and Tell.

Weights are an array or tensor (rows, columns), or nested sequences. A box is the part of the photo
that the grid covers; see captioner.photos.transform.Box. Photos are PIL images of any mode, as
viewed, and never modified.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from PIL import Image, ImageChops

from captioner.errors import ConfigError
from captioner.photos.transform import Box

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

FULL_HEAT = 8.0
"""The weight of full heat, as a multiple of the even share."""

# Ten evenly spaced anchors of each scale. inferno, magma and viridis: van der Walt, Smith and
# Firing 2015, CC0 (bids.github.io/colormap). cividis: Nunez, Anderton and Renslow 2018, made to
# look nearly the same with and without red-green colour blindness (PLOS ONE 13(7): e0199239).
_ANCHORS = {
    "inferno": "000004 1b0c41 4a0c6b 781c6d a52c60 cf4446 ed6925 fb9b06 f7d13d fcffa4",
    "magma": "000004 180f3d 440f76 721f81 9e2f7f cd4071 f1605d fd9668 feca8d fcfdbf",
    "viridis": "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725",
    "cividis": "00224e 123570 3b496c 575d6d 707173 8a8678 a59c74 c3b369 e1cc55 fee838",
}
_SPOTLIGHT = "spotlight"

COLORS: tuple[str, ...] = (*_ANCHORS, _SPOTLIGHT)
"""The names for `colors=`."""

DEFAULT_COLORS = "inferno"
"""Visible on light and on dark photos."""

OPACITY_GAIN = 2.0
"""Opacity divided by heat; above 1 so that the lower half of a scale is visible."""

TEXTURE = 0.3
"""How much of the photo's brightness shows through full heat."""

# The black end of a scale would look like a shadow; the pale end cannot be seen on white.
_FIRST_COLOR, _LAST_COLOR = 40, 220

DEFAULT_STRENGTH = 0.75
"""The default opacity of full heat."""

WHOLE = Box(0.0, 0.0, 1.0, 1.0)
"""The box of a grid that covers the whole photo."""


class OverlayOptions(TypedDict, total=False):
    """The options of overlays, sheets and animations.

    smooth: interpolate between the centres of the cells; False: cells are rectangles.
    strength: 0 (the photo only) to 1 (opaque).
    colors: one of COLORS.
    """

    smooth: bool
    strength: float
    colors: str


class Panel(NamedTuple):
    """A word on sheets and animations, with its attention.

    confidence: the word's trust, or its probability if the model has no trust, 0 to 1; or None.
    doubtful: whether the trust is low.
    """

    word: str
    confidence: float | None
    weights: ArrayLike
    doubtful: bool = False


def overlay(
    photo: Image.Image,
    weights: ArrayLike,
    *,
    box: Box = WHOLE,
    smooth: bool = True,
    strength: float = DEFAULT_STRENGTH,
    colors: str = DEFAULT_COLORS,
) -> Image.Image:
    """Draw one word's attention over the photo, as a new "RGB" image of the photo's size.

    Options: see OverlayOptions.

    Raises ConfigError: unknown colors, a strength outside 0 to 1, an empty box, or weights that are
    not a table of finite numbers of at least 0.
    """
    heat = attention_map(weights, photo.size, box=box, smooth=smooth)
    return blend(photo, heat, strength=strength, colors=colors)


def attention_map(
    weights: ArrayLike, size: tuple[int, int], *, box: Box = WHOLE, smooth: bool = True
) -> Image.Image:
    """Return the heat of one word at a photo's size (width, height), as an "L" image.

    Pixels are 255 from `FULL_HEAT` times the even share, and 85 less for each halving of the
    weight. They are 0 up to the even share, and outside the box.
    """
    import numpy as np  # not needed for --help

    table = _read_weights(weights)
    even = max(table.mean(), np.finfo(float).tiny)
    full = math.log(min(FULL_HEAT, table.size)) or 1.0  # of few cells: one has all attention
    # From 0.5 to 255.5, because converting to "L" truncates.
    heat = 0.5 + 255 * (np.log(np.maximum(table / even, 1)) / full).clip(max=1)
    # Float mode keeps the undershoots of bicubic interpolation until convert() clips them. A ripple
    # of up to 4 remains where two cross; the ramp from 4 to 16 removes it.
    method = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    ramp = [min(level, max(0, (level - 4) * 4 // 3)) for level in range(256)]
    return _spread(heat, size, box, method).convert("L").point(ramp)


def attention_density(
    weights: ArrayLike, size: tuple[int, int], *, box: Box = WHOLE, smooth: bool = True
) -> NDArray[np.float32]:
    """Return the attention to each pixel of a photo: float32 (height, width), sums to 1.

    Attention outside the photo, in the bars of a padded square, is dropped; pixels outside the box
    are 0.

    Raises ConfigError: as `overlay`.
    """
    import numpy as np  # not needed for --help

    method = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    density = np.array(_spread(_read_weights(weights), size, box, method))
    total = density.sum(dtype=np.float64)
    if total > 0:
        density /= total
    return density


@cache
def color_scale(name: str) -> tuple[tuple[int, ...], ...]:
    """Return the red, green and blue, 0 to 255, of the heat values 0 to 255."""
    steps = list(pairwise(bytes.fromhex(code) for code in _ANCHORS[name].split()))
    scale = []
    for heat in range(256):
        level = _FIRST_COLOR + (_LAST_COLOR - _FIRST_COLOR) * heat // 255
        step, part = divmod(level / 255 * len(steps), 1)
        low, high = steps[int(step)]
        scale.append(tuple(round(a + (b - a) * part) for a, b in zip(low, high, strict=True)))
    return tuple(scale)


def drawing_constants() -> dict[str, Any]:
    """Return the colours and constants, for browsers and exported models.

    Palettes have six hex digits per level.
    """
    return {
        "colors": list(COLORS),
        "palettes": {name: b"".join(map(bytes, color_scale(name))).hex() for name in _ANCHORS},
        "default_colors": DEFAULT_COLORS,
        "default_strength": DEFAULT_STRENGTH,
        "full_heat": FULL_HEAT,
        "opacity_gain": OPACITY_GAIN,
        "texture": TEXTURE,
    }


def blend(
    photo: Image.Image,
    heat: Image.Image,
    *,
    strength: float = DEFAULT_STRENGTH,
    colors: str = DEFAULT_COLORS,
) -> Image.Image:
    """Draw heat, an "L" image of the photo's size, over a photo, as a new "RGB" image.

    With a scale the photo is unchanged where heat is 0. With "spotlight" it is unchanged where heat
    is 255, and dark and grey where heat is 0.

    Raises ConfigError: unknown colors, or a strength outside 0 to 1.
    """
    if colors not in COLORS:
        raise ConfigError(f"there are no colors {colors!r}: choose from {', '.join(COLORS)}")
    if not 0 <= strength <= 1:
        raise ConfigError(f"strength is {strength}; it must be between 0 and 1")
    photo = photo.convert("RGB")
    gray = photo.convert("L")
    if colors == _SPOTLIGHT:
        shade = Image.blend(photo, gray.convert("RGB"), strength)
        shade = shade.point([round(value * (1 - strength)) for value in range(256)] * 3)
        opacity = [round(255 * (1 - (1 - level / 255) ** 2)) for level in range(256)]
        return Image.composite(photo, shade, heat.point(opacity))
    channels = zip(*color_scale(colors), strict=True)
    tint = Image.merge("RGB", [heat.point(list(channel)) for channel in channels])
    grain = gray.point([round(255 - TEXTURE * (255 - value)) for value in range(256)])
    tint = ImageChops.multiply(tint, grain.convert("RGB"))
    opacity = [round(255 * strength * min(1, OPACITY_GAIN * level / 255)) for level in range(256)]
    return Image.composite(tint, photo, heat.point(opacity))


def fit(photo: Image.Image, bounds: tuple[float, float], *, enlarge: float) -> Image.Image:
    """Scale a photo to fit bounds (width, height), by a factor of at most `enlarge`; return RGB."""
    scale = min(bounds[0] / photo.width, bounds[1] / photo.height, enlarge)
    size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
    return photo.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def _read_weights(weights: ArrayLike) -> NDArray[np.float64]:
    """Check attention weights (rows, columns), which need not sum to 1."""
    import numpy as np

    try:
        table = np.array(weights.tolist() if hasattr(weights, "tolist") else weights, np.float64)
    except (TypeError, ValueError):
        table = np.zeros(0)
    if table.ndim != 2 or table.size == 0:
        raise ConfigError("attention weights must be a table of shape (rows, columns)")
    if not (np.isfinite(table) & (table >= 0)).all():
        raise ConfigError("attention weights must be finite and not negative")
    return table


def _spread(
    table: NDArray[np.float64], size: tuple[int, int], box: Box, method: Image.Resampling
) -> Image.Image:
    """Resize a table to a box of a photo; return an "F" image, 0 outside the box."""
    rows, columns = table.shape
    x0, x1, left, right = _span(size[0], columns, box[0], box[2])
    y0, y1, top, bottom = _span(size[1], rows, box[1], box[3])
    result = Image.new("F", size)
    if x0 < x1 and y0 < y1:
        grid = Image.fromarray(table.astype("float32"))
        part = grid.resize((x1 - x0, y1 - y0), method, box=(left, top, right, bottom))
        result.paste(part, (x0, y0))
    return result


def _span(pixels: int, cells: int, low: float, high: float) -> tuple[int, int, float, float]:
    """Return the range of pixels with their centres in the box, and of the cells they cover."""
    if not low < high or not math.isfinite(high - low):
        raise ConfigError(f"a box from {low} to {high} is empty")
    first, end = (min(max(math.ceil(edge * pixels - 0.5), 0), pixels) for edge in (low, high))
    start, stop = ((edge / pixels - low) / (high - low) * cells for edge in (first, end))
    return first, end, max(start, 0.0), min(stop, float(cells))
