"""Contact sheets: the photo and the attention of every word side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from PIL import Image, ImageDraw

from captioner.drawing.lettering import (
    HAIRLINE,
    INK,
    MUTED,
    PAPER,
    Text,
    dashed_rectangle,
    font_of,
    percentage,
    shorten,
)
from captioner.drawing.overlay import (
    DEFAULT_COLORS,
    DEFAULT_STRENGTH,
    FULL_HEAT,
    WHOLE,
    OverlayOptions,
    Panel,
    blend,
    fit,
    overlay,
)
from captioner.photos.transform import Box

_Size = tuple[int, int]


def contact_sheet(
    photo: Image.Image,
    panels: Sequence[Panel],
    *,
    title: str | None = None,
    note: str | None = None,
    measure: str = "",
    box: Box = WHOLE,
    panel_side: int = 260,
    columns: int | None = None,
    **options: Unpack[OverlayOptions],
) -> Image.Image:
    """Draw the photo, a panel for each word, and the legend, as one "RGB" image.

    Args:
        photo: the photo, of any mode.
        panels: the words; may be empty. Doubtful words have a dashed outline.
        title: text above the panels, usually the caption.
        note: text below the panels, the legend for doubtful words.
        measure: the label of the numbers beside the words, for the legend.
        box: the part of the photo that the grid covers.
        panel_side: pixels of a square photo's panel; others have the same area.
        columns: panels in a row; None: chosen for a shape near 3:2.
        **options: the options of the overlays.

    Raises ConfigError: as `overlay`.
    """
    unit = panel_side / 260
    aspect = math.sqrt(min(max(photo.width / photo.height, 1 / 4), 4))
    small = fit(photo, (panel_side * aspect, panel_side / aspect), enlarge=4)
    cell = (max(small.width, panel_side // 2), small.height + round(50 * unit))
    gap, margin, count = round(28 * unit), round(40 * unit), len(panels) + 1
    columns = min(columns or _columns(count, cell), count)
    width = max(columns * (cell[0] + gap) - gap, round(1.4 * panel_side))
    heading = Text.flow((title or "").split(), round(32 * unit), width, space=0.28)
    top = margin + (heading.height + gap if title else 0)
    below = top + math.ceil(count / columns) * (cell[1] + gap)
    swatch = round(40 * unit)
    legend = Text.flow((note or "").split(), round(14 * unit), width - swatch, space=0.28)
    height = below + (legend.height + gap // 2 if note else 0) + round(24 * unit) + margin
    sheet = Image.new("RGB", (width + 2 * margin, height), PAPER)
    heading.draw(sheet, (margin, margin))
    letters = "".join(panel.word for panel in panels)
    for index in range(count):
        row, column = divmod(index, columns)
        corner = (margin + column * (cell[0] + gap), top + row * (cell[1] + gap))
        picture, panel = small, panels[index - 1] if index else None
        if panel:
            picture = overlay(small, panel.weights, box=box, **options)
        _draw_cell(sheet, corner, cell[0], picture, unit, panel, beside=letters)
    if note:
        corner = (margin + round(28 * unit), below + round(16 * unit))
        outline = margin, below, *corner
        dashed_rectangle(ImageDraw.Draw(sheet), outline, INK, 7 * unit, 3 * unit)
        legend.draw(sheet, (margin + swatch, below), color=MUTED)
    _draw_key(sheet, (margin, height - margin), unit, options, measure)
    return sheet


def _columns(count: int, cell: _Size) -> int:
    """Choose the number of columns for a shape near 3:2 with few empty places."""

    def cost(columns: int) -> float:
        rows = math.ceil(count / columns)
        shape = columns * cell[0] / (rows * cell[1])
        return abs(math.log(shape / 1.5)) + (rows * columns - count) / count

    return min(range(1, count + 1), key=cost)


def _draw_cell(
    sheet: Image.Image,
    corner: _Size,
    width: int,
    picture: Image.Image,
    unit: float,
    panel: Panel | None,
    *,
    beside: str,
) -> None:
    """Draw a panel: the picture, the word and its confidence; for the photo `panel` is None."""
    draw, font = ImageDraw.Draw(sheet), font_of(round(15 * unit))
    x, y = corner
    left = x + (width - picture.width) // 2
    # A hairline around the picture, whose edge may be white.
    draw.rectangle((left - 1, y - 1, left + picture.width, y + picture.height), HAIRLINE)
    sheet.paste(picture, (left, y))
    if panel and panel.doubtful:
        out = max(2, round(5 * unit))
        bounds = (left - out, y - out, left + picture.width + out, y + picture.height + out)
        dashed_rectangle(draw, bounds, INK, 7 * unit, 3 * unit)
    y += picture.height + round(27 * unit)
    if panel is None:
        draw.text((x, y), "photo", MUTED, font, anchor="ls")
        return
    room, confidence = float(width), panel.confidence
    if confidence is not None:
        percent = percentage(confidence)
        draw.text((x + width, y), percent, MUTED, font, anchor="rs")
        room -= font.getlength(percent) + 8 * unit
        bar = (y + round(11 * unit), y + round(13 * unit))
        draw.rectangle((x, bar[0], x + width - 1, bar[1]), HAIRLINE)
        if (length := round(width * confidence)) > 0:
            draw.rectangle((x, bar[0], x + length - 1, bar[1]), MUTED)
    word, font = shorten(panel.word, round(21 * unit), room, beside=beside)
    draw.text((x, y), word, INK, font, anchor="ls")


def _draw_key(
    sheet: Image.Image, corner: _Size, unit: float, options: OverlayOptions, measure: str
) -> None:
    """Draw the legend of the heat on a grey background and, if there is room, of the numbers."""
    draw, font = ImageDraw.Draw(sheet), font_of(round(14 * unit))
    size, gap = (round(104 * unit), round(10 * unit)), 9 * unit
    ramp = Image.linear_gradient("L").rotate(90).resize(size)
    bar = blend(
        Image.new("RGB", size, "#b0b0b0"),
        ramp,
        strength=options.get("strength", DEFAULT_STRENGTH),
        colors=options.get("colors", DEFAULT_COLORS),
    )
    x, y = corner
    low, high = "even share of attention", f"{FULL_HEAT:.0f} times"
    draw.text((x, y), low, MUTED, font, anchor="ls")
    x += round(font.getlength(low) + gap)
    sheet.paste(bar, (x, y - size[1]))
    x += round(size[0] + gap)
    draw.text((x, y), high, MUTED, font, anchor="ls")
    text, end = f"%: {measure}", sheet.width - corner[0]
    if measure and x + font.getlength(high) + gap < end - font.getlength(text):
        draw.text((end, y), text, MUTED, font, anchor="rs")
