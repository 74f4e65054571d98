"""Whose photo is next: of those who wait, the one who has taken the least of late.

Photos that take long are no reason to let others wait for all of them: whoever sent them waits
longest, and leaves the last free worker to the others.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from operator import itemgetter
from typing import Generic, TypeVar

__all__ = ["Turns"]

T = TypeVar("T")

_HALF = 60.0  # seconds after which half of what a client has taken is forgotten
_MUCH = 10.0  # seconds of work; who has taken more does not get the last free worker
_CLIENTS = 1000  # whose past is remembered


class Turns(Generic[T]):
    """A queue for a few workers, fair to many clients.

    Args:
        workers: that take from it.

    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._waiting: dict[str, deque[T]] = {}
        self._running: Counter[str] = Counter()
        self._used: dict[str, tuple[float, float]] = {}  # seconds, and when that was true
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: T, client: str = "") -> None:
        """Let an item of a client wait for its turn."""
        with self._changed:
            self._waiting.setdefault(client, deque()).append(item)
            self._changed.notify()

    def take(self) -> tuple[T, str] | None:
        """Wait for an item; whoever takes it tells `done` of it. None: closed, and all is taken."""
        with self._changed:
            while True:
                client = self._next()
                if client is not None:
                    items = self._waiting[client]
                    item = items.popleft()
                    if not items:
                        del self._waiting[client]
                    self._running[client] += 1
                    return item, client
                if self._closed and not self._waiting:
                    return None
                # What is held back for others has its turn when some of its past is forgotten.
                self._changed.wait(timeout=1.0 if self._waiting else None)

    def in_order(self) -> list[T]:
        """What waits, in the order of its turns as they stand now."""
        with self._changed:
            turns = [
                (self._running[client] + place, recent, item)
                for client, items in self._waiting.items()
                for recent in [self._recent(client)]
                for place, item in enumerate(items)
            ]
        return [item for _, _, item in sorted(turns, key=itemgetter(0, 1))]

    def start(self, item: T, client: str) -> None:
        """Take a certain item; whoever does tells `done` of it."""
        with self._changed:
            self._waiting[client].remove(item)
            if not self._waiting[client]:
                del self._waiting[client]
            self._running[client] += 1

    def done(self, client: str, seconds: float) -> None:
        """Note what an item has taken."""
        with self._changed:
            self._running -= Counter([client])
            self._used[client] = self._recent(client) + seconds, time.monotonic()
            if len(self._used) > _CLIENTS:
                del self._used[min(self._used, key=self._recent)]
            self._changed.notify_all()

    def close(self) -> None:
        """Let the workers end when nothing waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> str | None:
        last = 1 < self._workers <= self._running.total() + 1
        ready = (
            client
            for client in self._waiting
            if self._closed or not (last and client and self._recent(client) > _MUCH)
        )
        return min(ready, key=lambda one: (self._running[one], self._recent(one)), default=None)

    def _recent(self, client: str) -> float:
        seconds, when = self._used.get(client, (0.0, 0.0))
        return seconds * math.exp2((when - time.monotonic()) / _HALF)
