"""The table of an ablation and its figure: a row for every variant."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw

from captioner.drawing.lettering import HAIRLINE, INK, MUTED, PAPER, font_of
from captioner.drawing.saving import save_image

__all__ = ["Measures", "Row", "draw_chart", "table_text"]

Measures = dict[str, dict[str, float]]
"""Of one run, by what is measured: `value`, and `low` and `high` of its 95 % interval over images,
where there is one."""

COLUMNS = {
    "BLEU-4": 1,
    "CIDEr": 1,
    "on people": 3,
    "pointing": 1,
    "deletion effect": 3,
}
"""What is measured of every run, with its digits."""

_NAMES, _PANEL, _GAP, _LINE, _MARGIN = 260, 250, 40, 34, 40
_TOP = 90  # pixels: the title of a column, and room


class Cell(NamedTuple):
    """A number of the table, and how far it may be off, on either side."""

    value: float
    low: float
    high: float


class Row(NamedTuple):
    """A variant: what was measured of the run of every seed, and the milliseconds a photo."""

    name: str
    runs: Sequence[Measures]
    milliseconds: float

    def cell(self, column: str) -> Cell | None:
        """Give a number with its spread.

        Of several seeds: their mean, the smallest and the largest. Of one: its 95 % interval over
        images, where there is one.
        """
        found = [run[column] for run in self.runs if column in run]
        if not found:
            return None
        values = [one["value"] for one in found]
        if len(values) > 1:
            return Cell(statistics.fmean(values), min(values), max(values))
        return Cell(values[0], found[0].get("low", values[0]), found[0].get("high", values[0]))


def table_text(rows: Sequence[Row]) -> str:
    """Write the table as Markdown, and under it how to read it."""
    shown = [name for name in COLUMNS if any(row.cell(name) for row in rows)]
    head = ["variant", *shown, "parameters", "ms a photo"]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in rows:
        cells = [_cell_text(row.cell(name), COLUMNS[name]) for name in shown]
        parameters = row.runs[0]["parameters"]["value"] / 1e6
        lines.append(_line([row.name, *cells, f"{parameters:.2f} M", f"{row.milliseconds:.1f}"]))
    seeds = {len(row.runs) for row in rows}
    spread = "the smallest and the largest of the seeds" if max(seeds) > 1 else "95 % over images"
    lines += ["", f"In brackets: {spread}. Seeds: {', '.join(map(str, sorted(seeds)))}."]
    chances = [cell.value for row in rows if (cell := row.cell("by chance"))]
    if chances:
        least, most = f"{min(chances):.3f}", f"{max(chances):.3f}"
        lines.append(
            f"Attention on people by chance: {least if least == most else f'{least} to {most}'}."
        )
    return "\n".join(lines) + "\n"


def draw_chart(rows: Sequence[Row], path: Path) -> None:
    """Draw the table as a PNG: a dot for each value, a bar for its spread.

    Raises OutputError: the file cannot be written.
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


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell_text(cell: Cell | None, digits: int) -> str:
    if cell is None:
        return ""
    value, low, high = (f"{number:.{digits}f}" for number in cell)
    return value if low == high else f"{value} ({low} to {high})"


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
