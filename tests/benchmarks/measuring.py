"""Helpers of the benchmarks: timings and tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

__all__ = ["Table", "seconds"]


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


class Table:
    """A table of numbers. Each row is printed as soon as it is measured.

    Args:
        title: printed above the table.
        name: the header of the first column.
        *columns: the headers of the numbers, with their units.
    """

    def __init__(self, title: str, name: str, *columns: str) -> None:
        self._widths = [max(9, len(column)) + 2 for column in columns]
        print(f"\n{title}")
        self._print(name, columns)

    def row(self, name: str, *values: float | None) -> None:
        """Print the numbers of a row with three digits or more; None is left blank."""
        self._print(name, map(_format, values))

    def _print(self, name: str, cells: Iterable[str]) -> None:
        pairs = zip(cells, self._widths, strict=True)
        print(f"{name:<36}" + "".join(f"{cell:>{width}}" for cell, width in pairs), flush=True)


def _format(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
