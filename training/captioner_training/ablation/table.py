"""The table of an ablation: a row for every variant."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["COLUMNS", "Cell", "Measures", "Row", "table_text"]

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
"""What is measured of every run, with the digits that are told."""


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
        cells = [_told(row.cell(name), COLUMNS[name]) for name in shown]
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


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _told(cell: Cell | None, digits: int) -> str:
    if cell is None:
        return ""
    value, low, high = (f"{number:.{digits}f}" for number in cell)
    return value if low == high else f"{value} ({low} to {high})"
