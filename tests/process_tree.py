"""Child processes of a process, which may start and end meanwhile (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["children", "family", "seconds"]


def children(pid: int) -> list[int]:
    """Return the running child processes of a process."""
    found: list[int] = []
    with suppress(OSError):  # the process has ended
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(OSError):  # this thread has ended since it was listed
                found += map(int, (thread / "children").read_text().split())
    return found


def seconds(pids: Iterable[int]) -> float:
    """Return the total CPU time of those processes that still run, in seconds."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for child in children(pid):
        yield from family(child)
