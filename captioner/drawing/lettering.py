"""Words on sheets and animations: fonts, lines, the cells of a sheet and its key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from captioner.drawing.colors import FULL_HEAT, blend

__all__ = ["PAPER", "Text", "draw_cell", "draw_key"]

PAPER, _HAIRLINE, _FAINT, _MUTED, _INK = "#ffffff", "#e3e5e9", "#b4bac4", "#69707d", "#1c2027"
_ACCENT = "#c2410c"  # from the warm end of the default scale; 5:1 against the paper

_Size = tuple[int, int]
_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@cache
def font_of(size: int) -> _Font:
    return ImageFont.load_default(size=max(size, 8))


def shorten(word: str, size: int, width: float) -> tuple[str, _Font]:
    """Make a word fit: set it smaller, down to two thirds, then cut it off with "…"."""
    for smaller in range(size, size * 2 // 3, -1):
        if font_of(smaller).getlength(word) <= width:
            return word, font_of(smaller)
    font = font_of(size * 2 // 3)
    while word and font.getlength(f"{word}…") > width:
        word = word[:-1]
    return f"{word}…", font


class Text(NamedTuple):
    """Words set in lines: each with its font, x and line."""

    size: int
    words: list[tuple[str, _Font, float, int]]
    height: int

    @classmethod
    def flow(
        cls, words: Sequence[str], size: int, width: float, *, space: float, center: bool = False
    ) -> Text:
        """Break words into lines of at most `width` pixels, `space` sizes apart."""
        placed: list[tuple[str, _Font, float, int]] = []
        ends = [0.0]  # of each line
        for word in words:
            text, font = shorten(word, size, width)
            length = font.getlength(text)
            x = ends[-1] + size * space if ends[-1] else 0.0
            if x and x + length > width:
                ends.append(0.0)
                x = 0.0
            placed.append((text, font, x, len(ends) - 1))
            ends[-1] = x + length
        if center:
            placed = [(t, font, x + (width - ends[n]) / 2, n) for t, font, x, n in placed]
        return cls(size, placed, round(size * 1.45 * len(ends)))

    def draw(self, sheet: Image.Image, corner: _Size, *, said: int | None = None) -> None:
        """Draw it; with `said`, words after that one are faint and that one is marked."""
        draw = ImageDraw.Draw(sheet)
        for index, (text, font, left, line) in enumerate(self.words):
            x, y = corner[0] + left, corner[1] + self.size * (1 + 1.45 * line)
            color = _INK if said is None or index < said else _FAINT
            if index == said:
                pad, up, down = self.size * 0.2, self.size * 0.95, self.size * 0.37
                pill = (x - pad, y - up, x + font.getlength(text) + pad, y + down)
                draw.rounded_rectangle(pill, pad, _ACCENT)
                color = PAPER
            draw.text((x, y), text, color, font, anchor="ls")


def draw_cell(
    sheet: Image.Image,
    corner: _Size,
    width: int,
    picture: Image.Image,
    unit: float,
    *,
    word: str | None,
    probability: float | None,
) -> None:
    """Draw a picture of the sheet, and below it the word and its probability; None is the photo."""
    draw, font = ImageDraw.Draw(sheet), font_of(round(15 * unit))
    x, y = corner
    left = x + (width - picture.width) // 2
    # A hairline around it, for snow and sky would melt into the paper.
    draw.rectangle((left - 1, y - 1, left + picture.width, y + picture.height), _HAIRLINE)
    sheet.paste(picture, (left, y))
    y += picture.height + round(27 * unit)
    if word is None:
        draw.text((x, y), "photo", _MUTED, font, anchor="ls")
        return
    room = float(width)
    if probability is not None:
        percent = f"{probability:.0%}"
        draw.text((x + width, y), percent, _MUTED, font, anchor="rs")
        room -= font.getlength(percent) + 8 * unit
        bar = (y + round(11 * unit), y + round(13 * unit))
        draw.rectangle((x, bar[0], x + width - 1, bar[1]), _HAIRLINE)
        if (length := round(width * probability)) > 0:
            draw.rectangle((x, bar[0], x + length - 1, bar[1]), _MUTED)
    word, font = shorten(word, round(21 * unit), room)
    draw.text((x, y), word, _INK, font, anchor="ls")


def draw_key(
    sheet: Image.Image, corner: _Size, unit: float, *, colors: str, strength: float
) -> None:
    """Draw what heat looks like over a grey photo, and what it stands for."""
    draw, font = ImageDraw.Draw(sheet), font_of(round(14 * unit))
    size, gap = (round(104 * unit), round(10 * unit)), 9 * unit
    ramp = Image.linear_gradient("L").rotate(90).resize(size)
    bar = blend(Image.new("RGB", size, "#b0b0b0"), ramp, colors=colors, strength=strength)
    x, y = corner
    low, high = "even share of attention", f"{FULL_HEAT:.0f} times"
    draw.text((x, y), low, _MUTED, font, anchor="ls")
    x += round(font.getlength(low) + gap)
    sheet.paste(bar, (x, y - size[1]))
    draw.text((x + size[0] + gap, y), high, _MUTED, font, anchor="ls")
