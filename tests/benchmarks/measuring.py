"""Helpers of the benchmarks: alternating timings, memory, goals and tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median

from tests.process_tree import family

__all__ = ["Memory", "Table", "Watch", "in_turns", "reached", "seconds"]


def seconds(function: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def in_turns(ways: Mapping[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Median seconds of each way, after a call of each that does not count.

    In every round each way has its turn, so that a disturbance meets all of them.
    """
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(seconds(way))
    return {name: median(each) for name, each in times.items()}


def reached(name: str, value: float, target: float, *, at_most: bool = False) -> bool:
    """Print a figure beside its target, and say whether that is met."""
    met = value <= target if at_most else value >= target
    bound = "at most" if at_most else "at least"
    print(f"{value:8.2f} {name} ({bound} {target:g}: {'met' if met else 'MISSED'})", flush=True)
    return met


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


class Memory:
    """Memory of a process in bytes, each page that it shares counted in part (PSS).

    Attributes:
        needed: anonymous and shared memory.
        mapped: of files, which the system takes back when it needs room.
    """

    def __init__(self, *pids: int) -> None:
        sums = {"Pss_Anon": 0, "Pss_Shmem": 0, "Pss_File": 0}
        for pid in pids:
            with suppress(OSError):  # it has just ended
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if (name := line.partition(":")[0]) in sums:
                        sums[name] += 1024 * int(line.split()[1])
        self.needed, self.mapped = sums["Pss_Anon"] + sums["Pss_Shmem"], sums["Pss_File"]

    @property
    def all(self) -> int:
        """Both."""
        return self.needed + self.mapped


class Watch:
    """Sample the memory of a process and all below it; keep the highest, in bytes.

    A sample takes some ms of a core for each GB, `every` so many seconds.
    """

    def __init__(self, pid: int, *, every: float = 0.3) -> None:
        self.pid, self.every = pid, every
        self.needed = self.mapped = self.all = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(self.every):
            now = Memory(*family(self.pid))
            self.needed, self.mapped = max(self.needed, now.needed), max(self.mapped, now.mapped)
            self.all = max(self.all, now.all)

    def __str__(self) -> str:
        return f"{self.needed / 1e9:.2f} GB needed, {self.mapped / 1e9:.2f} GB of files mapped"
