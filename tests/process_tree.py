"""The processes below another one, while both they and its threads come and go (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["children", "family", "seconds"]


def children(pid: int) -> list[int]:
    """Find the processes that a process has started and that still run."""
    found: list[int] = []
    with suppress(OSError):  # the process has ended
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(OSError):  # this thread has ended since it was listed
                found += map(int, (thread / "children").read_text().split())
    return found


def seconds(pids: Iterable[int]) -> float:
    """Add up the processor time of processes, as far as they still run."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> Iterator[int]:
    """Give a process and all below it."""
    yield pid
    for child in children(pid):
        yield from family(child)
