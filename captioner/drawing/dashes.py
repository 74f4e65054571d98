"""Dashed outlines: they mark words that were guessed, for those too who tell no colours apart."""

from __future__ import annotations

from PIL import ImageDraw

__all__ = ["dashed_rectangle"]


def dashed_rectangle(
    draw: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    color: str,
    *,
    dash: int,
    width: int,
) -> None:
    """Draw the outline of a box (left, top, right, bottom), inclusive, in dashes of that length."""
    left, top, right, bottom = box
    for x in range(left, right, 2 * dash):
        end = min(x + dash - 1, right)
        draw.rectangle((x, top, end, top + width - 1), color)
        draw.rectangle((x, bottom - width + 1, end, bottom), color)
    for y in range(top, bottom, 2 * dash):
        end = min(y + dash - 1, bottom)
        draw.rectangle((left, y, left + width - 1, end), color)
        draw.rectangle((right - width + 1, y, right, end), color)
