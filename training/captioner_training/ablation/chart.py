"""The figure of an ablation: every measure as a column of dots, a line for every variant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from captioner.drawing.lettering import HAIRLINE, INK, MUTED, PAPER, font_of
from captioner.drawing.saving import save_image
from captioner_training.ablation.table import COLUMNS, Cell, Row

__all__ = ["draw_chart"]

_NAMES, _PANEL, _GAP, _LINE, _MARGIN = 260, 250, 40, 34, 40
_TOP = 90  # pixels: the title of a column, and room


def draw_chart(rows: Sequence[Row], path: Path) -> None:
    """Draw the table as a PNG: a dot for each value, a bar for its spread.

    Raises:
        OutputError: the file cannot be written.

    """
    columns: dict[str, list[Cell | None]] = {
        name: [row.cell(name) for row in rows] for name in COLUMNS
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    columns["ms a photo"] = [Cell(*[row.milliseconds] * 3) for row in rows]
    width = 2 * _MARGIN + _NAMES + len(columns) * (_PANEL + _GAP)
    picture = Image.new("RGB", (width, _TOP + len(rows) * _LINE + 2 * _MARGIN), PAPER)
    draw, font = ImageDraw.Draw(picture), font_of(18)
    for number, row in enumerate(rows):
        y = _TOP + number * _LINE
        draw.text((_MARGIN, y), row.name, INK, font, anchor="lm")
        draw.line((_MARGIN + _NAMES, y, width - _MARGIN - _GAP, y), HAIRLINE)
    for place, (name, cells) in enumerate(columns.items()):
        left = _MARGIN + _NAMES + place * (_PANEL + _GAP)
        _draw_column(draw, left, name, cells, digits=COLUMNS.get(name, 1))
    save_image(picture, path)


def _draw_column(
    draw: ImageDraw.ImageDraw, left: int, name: str, cells: Sequence[Cell | None], *, digits: int
) -> None:
    there = [cell for cell in cells if cell is not None]
    low, high = min(cell.low for cell in there), max(cell.high for cell in there)
    span = (high - low) or 1.0

    def at(value: float) -> float:
        return left + 8 + (value - low) / span * (_PANEL - 16)

    draw.text((left, _TOP - 50), name, INK, font_of(20), anchor="lm")
    bottom = _TOP + (len(cells) - 1) * _LINE + 30
    for value, anchor in ((low, "lm"), (high, "rm")):
        edge = left if anchor == "lm" else left + _PANEL
        draw.text((edge, bottom), f"{value:.{digits}f}", MUTED, font_of(15), anchor=anchor)
    for number, cell in enumerate(cells):
        if cell is None:
            continue
        y = _TOP + number * _LINE
        draw.line((at(cell.low), y, at(cell.high), y), MUTED, width=3)
        x = at(cell.value)
        draw.ellipse((x - 6, y - 6, x + 6, y + 6), INK)
