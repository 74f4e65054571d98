"""Where the time of an epoch's training goes: validation and saving do not count."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from captioner.vocabulary import PAD
from captioner_training.data.dataset import Batch

__all__ = ["Clock"]


class Clock:
    """Counts what this process has done of an epoch since it began it or took it up again.

    Args:
        processes: that do as much each.

    """

    def __init__(self, *, processes: int) -> None:
        self.processes = processes
        self.images = self.captions = self.steps = 0
        self.waiting = 0.0  # seconds for data
        self._started = time.perf_counter()
        self._stopped: float | None = None

    def waited(self, batches: Iterable[list[Batch]]) -> Iterator[list[Batch]]:
        """Pass batches on, and record how long they were waited for and what is in them."""
        each = iter(batches)
        while True:
            asked = time.perf_counter()
            parts = next(each, None)
            self.waiting += time.perf_counter() - asked
            if parts is None:
                return
            self._count(parts)
            yield parts

    def _count(self, parts: Sequence[Batch]) -> None:
        self.steps += 1
        self.images += self.processes * sum(len(part.tokens) for part in parts)
        # Every caption has a first word.
        said = sum(int((part.tokens[..., 1] != PAD).sum()) for part in parts)
        self.captions += self.processes * said

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block out."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began

    def stop(self) -> None:
        """Let no more time count."""
        self._stopped = time.perf_counter()

    def timing(self) -> dict[str, float]:
        """Give seconds, rates a second, and the share of the time that data were waited for."""
        seconds = (self._stopped or time.perf_counter()) - self._started
        return {
            "seconds": round(seconds, 2),
            "images_per_second": round(self.images / seconds, 2),
            "captions_per_second": round(self.captions / seconds, 2),
            "waiting": round(self.waiting / seconds, 4),
        }
