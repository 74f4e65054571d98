"""A fair queue of many clients, a thread pool that serves it, and a shared budget.

Clients take turns, so one heavy client cannot block the others. The next client is the one with the
fewest running items; among equals, the one that used the least time recently. A client that used
much time recently does not get the last free worker.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Generic, TypeVar

from captioner.closing import Closing

T = TypeVar("T")
R = TypeVar("R")

_HALF_LIFE = 60.0  # seconds after which a client's recorded use counts half
_HEAVY_USE = 10.0  # seconds of recent use that exclude a client from the last free worker
_CLIENTS = 1000  # the number of clients whose use is remembered


class FairQueue(Generic[T]):
    """A queue of many clients for a few workers."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._waiting: dict[str, deque[T]] = {}
        self._running: Counter[str] = Counter()
        self._used: dict[str, tuple[float, float]] = {}  # seconds of use, and when it was recorded
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: T, client: str = "") -> bool:
        """Add an item of a client; return False if the queue is closed."""
        with self._changed:
            if self._closed:
                return False
            self._waiting.setdefault(client, deque()).append(item)
            self._changed.notify()
            return True

    def take(self) -> tuple[T, str] | None:
        """Wait for an item; return it with its client, or None if the queue is closed and empty.

        Call `done` when the item is finished.
        """
        with self._changed:
            while (client := self._next()) is None:
                if self._closed and not self._waiting:
                    return None
                # Check again after a second, because a heavy client's use decays.
                self._changed.wait(timeout=1.0 if self._waiting else None)
            item = self._waiting[client][0]
            self._remove(item, client)
            return item, client

    def in_order(self) -> list[T]:
        """Return the waiting items in the present order of their turns."""
        with self._changed:
            turns = [
                (self._running[client] + place, recent, item)
                for client, items in self._waiting.items()
                for recent in [self._recent(client)]
                for place, item in enumerate(items)
            ]
        return [item for _, _, item in sorted(turns, key=itemgetter(0, 1))]

    def start(self, item: T, client: str) -> None:
        """Take this item out of the queue; call `done` when it is finished."""
        with self._changed:
            self._remove(item, client)

    def done(self, client: str, seconds: float) -> None:
        """Record that an item of a client is finished, and the seconds that it took."""
        with self._changed:
            self._running -= Counter([client])
            self._used[client] = self._recent(client) + seconds, time.monotonic()
            if len(self._used) > _CLIENTS:
                del self._used[min(self._used, key=self._recent)]
            self._changed.notify_all()

    def close(self) -> None:
        """Close the queue; workers end after the waiting items."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _remove(self, item: T, client: str) -> None:
        self._waiting[client].remove(item)
        if not self._waiting[client]:
            del self._waiting[client]
        self._running[client] += 1

    def _next(self) -> str | None:
        last = 1 < self._workers <= self._running.total() + 1
        ready = (
            client
            for client in self._waiting
            if self._closed or not (last and client and self._recent(client) > _HEAVY_USE)
        )
        return min(ready, key=lambda name: (self._running[name], self._recent(name)), default=None)

    def _recent(self, client: str) -> float:
        seconds, when = self._used.get(client, (0.0, 0.0))
        return seconds * math.exp2((when - time.monotonic()) / _HALF_LIFE)


class FairThreads(Closing, Generic[T]):
    """A thread pool with a fair queue. Each thread passes one of the `values` to its tasks."""

    def __init__(self, values: Sequence[T], *, name: str) -> None:
        self.values = values
        self._queue: FairQueue[tuple[Callable[[T], Any], Future[Any]]] = FairQueue(len(values))
        self._threads = [
            threading.Thread(target=self._run_tasks, args=[value], name=name, daemon=True)
            for value in values
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[T], R], client: str = "") -> Future[R]:
        """Submit a task of a client and return its future.

        If the future is cancelled before its turn, the task is skipped. After `close`, the returned
        future is already cancelled.
        """
        future: Future[R] = Future()
        if not self._queue.put((work, future), client):
            future.cancel()
        return future

    def close(self) -> None:
        """Finish the waiting tasks and end the threads."""
        self._queue.close()
        for thread in self._threads:
            thread.join()

    def _run_tasks(self, value: T) -> None:
        while (turn := self._queue.take()) is not None:
            (work, future), client = turn
            start = time.monotonic()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(value))
                except BaseException as error:
                    future.set_exception(error)
            self._queue.done(client, time.monotonic() - start)
            del work, future, turn  # they may hold a picture


class Budget:
    """A shared amount, given out first come, first served, so that large requests are not starved.

    A request for more than the total gets the total.
    """

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """Wait until the amount is free, and hold it during the block."""
        amount, ticket = min(amount, self._total), object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket and self._free >= amount)
            self._waiting.popleft()
            self._free -= amount
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()
