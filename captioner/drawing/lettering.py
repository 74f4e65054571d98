"""Text in pictures: fonts, colours, line breaks, and dashed outlines of doubtful words."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

PAPER, HAIRLINE, _FAINT, MUTED, INK = "#ffffff", "#e3e5e9", "#b4bac4", "#69707d", "#1c2027"
_ACCENT = "#c2410c"  # from the warm end of the default scale; 5:1 against the paper

# Fonts of Linux, macOS and Windows; Pillow searches the usual folders.
_FONTS = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansArabic-Regular.ttf",
    "NotoSansHebrew-Regular.ttf", "NotoSansCJK-Regular.ttc", "NotoSansThai-Regular.ttf",
    "wqy-microhei.ttc", "Arial Unicode.ttf", "arial.ttf", "msyh.ttc", "LeelawUI.ttf",
)  # fmt: skip

_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def font_of(size: int, text: str = "") -> _Font:
    """Return a font of `size` pixels, at least 8, that has all letters of the text.

    For letters beyond ASCII it is the first installed font of _FONTS that has them all, otherwise
    Pillow's default font.
    """
    letters = {letter for letter in text if not letter.isascii() and letter.isalnum()}
    default = _load("", max(size, 8))
    for name in _FONTS if letters else ():
        font = _load(name, max(size, 8))
        if font is not None and all(_draws(name, letter) for letter in letters):
            return font
    return default or ImageFont.load_default()


@cache
def _load(name: str, size: int) -> _Font | None:
    try:
        return ImageFont.truetype(name, size) if name else ImageFont.load_default(size=size)
    except OSError:
        return None


@cache
def _draws(name: str, letter: str) -> bool:
    """Whether a font has a letter, instead of drawing the box for missing letters."""
    font = _load(name, 30)
    return font is not None and bytes(font.getmask(letter)) != bytes(font.getmask("\uffff"))


def _is_right_to_left(words: Sequence[str]) -> bool:
    """Whether a sentence is written from right to left, judged by its first letter."""
    kinds = (unicodedata.bidirectional(letter) for word in words for letter in word)
    return next((kind != "L" for kind in kinds if kind in ("L", "R", "AL")), False)


def shorten(word: str, size: int, width: float, *, beside: str = "") -> tuple[str, _Font]:
    """Fit a word into a width: reduce the font size to two thirds at least, then cut it with "…".

    The font also has the letters of the text `beside` the word. Bisection keeps long words fast.
    """
    text = word + beside
    sizes = range(size, size * 2 // 3, -1)
    fits = bisect_left(
        sizes, x=True, key=lambda smaller: font_of(smaller, text).getlength(word) <= width
    )
    if fits < len(sizes):
        return word, font_of(sizes[fits], text)
    font = font_of(size * 2 // 3, text)
    count = bisect_left(
        range(1, len(word) + 1), x=True, key=lambda n: font.getlength(f"{word[:n]}…") > width
    )
    return f"{word[:count]}…", font


class Text(NamedTuple):
    """Words laid out in lines: text, font, x and line number of each. Pixels."""

    size: int
    words: list[tuple[str, _Font, float, int]]
    height: int

    @classmethod
    def flow(
        cls, words: Sequence[str], size: int, width: float, *, space: float, center: bool = False
    ) -> Text:
        """Break words into lines of at most `width` pixels; spaces are `space` times the size."""
        placed: list[tuple[str, _Font, float, int]] = []
        ends = [0.0]  # the right end of each line
        for word in words:
            text, font = shorten(word, size, width, beside="".join(words))
            length = font.getlength(text)
            x = ends[-1] + size * space if ends[-1] else 0.0
            if x and x + length > width:
                ends.append(0.0)
                x = 0.0
            placed.append((text, font, x, len(ends) - 1))
            ends[-1] = x + length
        if right_to_left := _is_right_to_left(words):
            placed = [(t, font, ends[n] - x - font.getlength(t), n) for t, font, x, n in placed]
        if center or right_to_left:
            share = 2 if center else 1
            placed = [(t, font, x + (width - ends[n]) / share, n) for t, font, x, n in placed]
        return cls(size, placed, round(size * 1.45 * len(ends)))

    def draw(
        self,
        sheet: Image.Image,
        corner: tuple[int, int],
        *,
        present: int | None = None,
        doubtful: bool = False,
        color: str = INK,
    ) -> None:
        """Draw the text on a sheet; mark the word with index `present` and draw later words faint.

        The mark is a filled shape, or a dashed outline if the word is doubtful.
        """
        draw = ImageDraw.Draw(sheet)
        for index, (text, font, left, line) in enumerate(self.words):
            x, y = corner[0] + left, corner[1] + self.size * (1 + 1.45 * line)
            ink = color if present is None or index < present else _FAINT
            if index == present:
                pad, up, down = self.size * 0.2, self.size * 0.95, self.size * 0.37
                pill = (x - pad, y - up, x + font.getlength(text) + pad, y + down)
                if doubtful:
                    dashed_rectangle(draw, pill, _ACCENT, self.size / 5, self.size // 12)
                    ink = color
                else:
                    draw.rounded_rectangle(pill, pad, _ACCENT)
                    ink = PAPER
            draw.text((x, y), text, ink, font, anchor="ls")


def dashed_rectangle(
    draw: ImageDraw.ImageDraw, box: Sequence[float], color: str, dash: float, width: float
) -> None:
    """Draw a dashed outline of a box, inclusive: it marks doubtful words without colour."""
    left, top, right, bottom = map(round, box)
    dash, width = max(2, round(dash)), max(1, round(width))
    for x in range(left, right, 2 * dash):
        end = min(x + dash - 1, right)
        draw.rectangle((x, top, end, top + width - 1), color)
        draw.rectangle((x, bottom - width + 1, end, bottom), color)
    for y in range(top, bottom, 2 * dash):
        end = min(y + dash - 1, bottom)
        draw.rectangle((left, y, left + width - 1, end), color)
        draw.rectangle((right - width + 1, y, right, end), color)


def percentage(share: float) -> str:
    """Return a share in percent, rounded down, so that 0.5499 is not shown as 55 %."""
    return "< 1 %" if share < 0.01 else f"{int(100 * share + 1e-9)} %"


def label(picture: Image.Image, word: str, *, doubtful: bool) -> Image.Image:
    """Return a copy of a picture with a word in its lower left corner.

    A doubtful word has a dashed outline. Pictures below 256 pixels have no room for a word.
    """
    shorter = min(picture.size)
    if shorter < 256:
        return picture
    size = shorter // 20
    pad, margin = size // 2, size // 2
    text, font = shorten(word, size, picture.width - 2 * (pad + margin))
    labelled, bottom = picture.copy(), picture.height - margin
    draw = ImageDraw.Draw(labelled)
    box = (margin, bottom - 2 * size, margin + 2 * pad + round(font.getlength(text)), bottom)
    draw.rectangle(box, PAPER)
    if doubtful:
        dashed_rectangle(draw, box, INK, size // 3, size // 10)
    draw.text((margin + pad, bottom - size), text, INK, font, anchor="lm")
    return labelled
