"""A queue that is fair to many clients, threads that work it off, and a shared budget.

Clients take turns, so one heavy client cannot block the others: the client that has used the least
time lately is next, and a client that has used much leaves the last free worker to the others.
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

__all__ = ["Budget", "FairQueue", "FairThreads"]

T = TypeVar("T")
R = TypeVar("R")

_HALF = 60.0  # seconds after which half of what a client has taken is forgotten
_MUCH = 10.0  # seconds of work; who has taken more does not get the last free worker
_CLIENTS = 1000  # whose past is remembered


class FairQueue(Generic[T]):
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

    def put(self, item: T, client: str = "") -> bool:
        """Let an item of a client wait for its turn; False: closed, and nobody will take it."""
        with self._changed:
            if self._closed:
                return False
            self._waiting.setdefault(client, deque()).append(item)
            self._changed.notify()
            return True

    def take(self) -> tuple[T, str] | None:
        """Wait for an item; whoever takes it tells `done` of it. None: closed, and all is taken."""
        with self._changed:
            while (client := self._next()) is None:
                if self._closed and not self._waiting:
                    return None
                # What is held back for others has its turn when some of its past is forgotten.
                self._changed.wait(timeout=1.0 if self._waiting else None)
            item = self._waiting[client][0]
            self._remove(item, client)
            return item, client

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
            self._remove(item, client)

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
            if self._closed or not (last and client and self._recent(client) > _MUCH)
        )
        return min(ready, key=lambda one: (self._running[one], self._recent(one)), default=None)

    def _recent(self, client: str) -> float:
        seconds, when = self._used.get(client, (0.0, 0.0))
        return seconds * math.exp2((when - time.monotonic()) / _HALF)


class FairThreads(Closing, Generic[T]):
    """Threads that work for the client whose turn it is.

    Args:
        values: one for each thread, which its work is called with.
        name: of the threads.
    """

    def __init__(self, values: Sequence[T], *, name: str) -> None:
        self.values = values
        self._queue: FairQueue[tuple[Callable[[T], Any], Future[Any]]] = FairQueue(len(values))
        self._threads = [
            threading.Thread(target=self._attend, args=[value], name=name, daemon=True)
            for value in values
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[T], R], client: str = "") -> Future[R]:
        """Have something done for a client; cancelled before its turn, it costs nothing.

        After `close` it comes back cancelled.
        """
        future: Future[R] = Future()
        if not self._queue.put((work, future), client):
            future.cancel()
        return future

    def close(self) -> None:
        """Do what waits, and end."""
        self._queue.close()
        for thread in self._threads:
            thread.join()

    def _attend(self, value: T) -> None:
        while (turn := self._queue.take()) is not None:
            (work, future), client = turn
            start = time.monotonic()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(value))
                except BaseException as error:
                    future.set_exception(error)
            self._queue.done(client, time.monotonic() - start)
            del work, future, turn  # what they hold: a picture, maybe


class Budget:
    """An amount that is shared: first come, first served, so that small ones keep no large one out.

    Args:
        total: whoever wants more gets all of it, alone.
    """

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """Wait until so much is free, and keep it for as long as the block runs."""
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
