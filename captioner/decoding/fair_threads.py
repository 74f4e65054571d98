"""A few threads for many clients, who take turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from captioner.closing import Closing
from captioner.decoding.turns import Turns

__all__ = ["FairThreads"]

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class _Task:
    work: Callable[[], Any]
    future: Future[Any]


def _nothing() -> None:
    return None


class FairThreads(Closing):
    """Threads that work for the client who has taken the least of late; see `Turns`.

    Args:
        threads: how many.
        name: of the threads.
        begin: what each of them does first.
        end: what each of them does last.

    """

    def __init__(
        self,
        threads: int,
        *,
        name: str,
        begin: Callable[[], None] = _nothing,
        end: Callable[[], None] = _nothing,
    ) -> None:
        self._begin, self._end = begin, end
        self._tasks: Turns[_Task] = Turns(threads)
        self._closed = False
        self._threads = [
            threading.Thread(target=self._attend, name=f"{name} {number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], _T], client: str = "") -> Future[_T]:
        """Have something done for a client; cancelled before its turn, it costs nothing.

        After `close` it comes back cancelled.
        """
        task = _Task(work, Future())
        if self._closed:
            task.future.cancel()
        else:
            self._tasks.put(task, client)
        return task.future

    def close(self) -> None:
        """Do what waits, and end."""
        self._closed = True
        self._tasks.close()
        for thread in self._threads:
            thread.join()

    def _attend(self) -> None:
        self._begin()
        while (turn := self._tasks.take()) is not None:
            task, client = turn
            start = time.monotonic()
            if task.future.set_running_or_notify_cancel():
                try:
                    task.future.set_result(task.work())
                except BaseException as error:
                    task.future.set_exception(error)
            self._tasks.done(client, time.monotonic() - start)
            del task, turn  # what it holds: a picture, maybe
        self._end()
