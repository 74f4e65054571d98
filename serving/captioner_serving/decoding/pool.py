"""The decoding pool, which turns untrusted photos into pixels or pictures.

A damaged file can crash a decoder written in C, keep it busy for hours, or take all memory. Here
each photo has a deadline, a memory limit and a pixel budget, in a process that holds nothing else.
One thread serves each process. Clients take turns, see FairQueue.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from captioner.closing import Closing
from captioner.errors import CaptionerError
from captioner.photos.open import MAX_PIXELS
from captioner.photos.transform import TransformConfig
from captioner_serving.decoding.child import Limits
from captioner_serving.decoding.fair_queue import Budget, FairThreads
from captioner_serving.decoding.photo import Decoded, Output, Readable, Square, is_ordinary
from captioner_serving.decoding.process import DecodeProcess, closed_error

_SECONDS = 120.0  # the default time limit of a photo
_GROUP = 8  # photos of a stream that a process decodes for one request
_Photo = TypeVar("_Photo", bound=Readable)
_Lanes = list[FairThreads[DecodeProcess]]


class Reader(Closing):
    """Decodes photos in child processes, which are started with the first photos.

    The processes end with this one, or when this object is closed or garbage collected.

    Args:
        transform: how a photo becomes a square.
        workers: the number of processes.
        quick: further processes for ordinary JPEGs, which do not wait for other photos.
        fetching: further processes for photos with a `url`, so that slow hosts block no others.
        max_pixels: the limit of width times height.
        seconds: the time limit of a photo, for reading and decoding.
        budget: the pixels that each kind of processes may decode at once; a larger photo is decoded
            alone. None: twice `max_pixels`.
        nice: the priority of the workers, 0 to 19.
        environment: variables that the `fetching` processes need; others inherit almost none.
    """

    def __init__(
        self,
        transform: TransformConfig,
        *,
        workers: int = 1,
        quick: int = 0,
        fetching: int = 0,
        max_pixels: int = MAX_PIXELS,
        seconds: float = _SECONDS,
        budget: int | None = None,
        nice: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._transform, self._max_pixels, self._seconds = transform, max_pixels, seconds
        self._workers, self._quick, self._fetching, self._nice = workers, quick, fetching, nice
        self._budget = 2 * max_pixels if budget is None else budget
        self._environment = environment or {}
        self._closed = False
        self._running: tuple[int, _Lanes] = _NONE

    def start(self) -> None:
        """Start the processes now, in the background."""
        for lane in self._lanes():
            for _ in lane.values:
                lane.submit(DecodeProcess.start)  # if this fails, the first photo raises the error

    def _lanes(self) -> _Lanes:
        """Return the three pools: for all photos, ordinary JPEGs, and photos with a `url`."""
        if self._closed:
            raise closed_error()
        with _starting:
            # A fork has none of its parent's threads.
            if self._running[0] != os.getpid():
                lanes: _Lanes = []
                for count, nice, environment in (
                    (self._workers, self._nice, {}),
                    (self._quick, 0, {}),
                    (self._fetching, 0, self._environment),
                ):
                    limits = Limits(max_pixels=self._max_pixels, seconds=self._seconds, nice=nice)
                    budget = Budget(self._budget)
                    processes = [
                        DecodeProcess(limits, budget=budget, environment=environment)
                        for _ in range(count)
                    ]
                    lanes.append(FairThreads(processes, name="decoding"))
                self._running = os.getpid(), lanes
                weakref.finalize(self, _close, *self._running)
            return self._running[1]

    def _lane(self, photo: Readable, outputs: Sequence[Output]) -> FairThreads[DecodeProcess]:
        """Return the pool for a photo."""
        lane, quick, fetching = self._lanes()
        if self._fetching and hasattr(photo, "url"):
            return fetching
        if self._quick and all(isinstance(output, Square) for output in outputs):
            return quick if is_ordinary(getattr(photo, "data", b"")) else lane
        return lane

    def produce(
        self, photo: Readable, outputs: Sequence[Output], *, client: str = ""
    ) -> Future[list[Decoded]]:
        """Read a photo of a client once and make the outputs in a child process.

        A photo that cannot be decoded gives results with an `error`. The future raises
        CaptionerError if no process can be started, memory is short, or the reader is closed. If it
        is cancelled before its turn, the photo is not read.
        """
        lane = self._lane(photo, outputs)
        return lane.submit(lambda process: process.decode(photo, outputs), client)

    def stream(
        self, photos: Iterator[_Photo], *, ahead: int = 1
    ) -> Iterator[tuple[_Photo, Decoded]]:
        """Decode photos and yield them in their order.

        If `photos` raises an exception, the earlier photos are yielded before it is raised again.
        `ahead` photos are decoded in advance, or fewer if their files take much memory.
        """
        ahead = max(ahead, 2 * self._workers)
        groups = _groups(photos, min(_GROUP, ahead // (2 * self._workers)))
        tasks: deque[tuple[list[_Photo], Future[list[Decoded | CaptionerError]]]] = deque()
        problem: Exception | None = None
        count = 0  # photos that are decoded in advance
        while tasks or problem is None:
            while problem is None and count < ahead:
                try:
                    group = next(groups)
                except Exception as error:
                    problem = error
                else:
                    tasks.append((group, self._submit_group(group)))
                    count += len(group)
            if tasks:
                group, future = tasks.popleft()
                for photo, decoded in zip(group, future.result(), strict=False):
                    if isinstance(decoded, CaptionerError):
                        raise decoded
                    yield photo, decoded
                count -= len(group)
        if problem is not None and not isinstance(problem, StopIteration):
            raise problem

    def _submit_group(self, group: Sequence[Readable]) -> Future[list[Decoded | CaptionerError]]:
        output = Square(self._transform)
        lane, _, fetching = self._lanes()
        if self._fetching and hasattr(group[0], "url"):  # which is alone
            lane = fetching
        return lane.submit(lambda process: process.decode_together(group, output))

    def close(self) -> None:
        """End the processes; photos that are not decoded yet fail."""
        self._closed = True
        _close(*self._running)


_starting = threading.Lock()
_NONE: tuple[int, _Lanes] = -1, []


def _close(owner: int, lanes: _Lanes) -> None:
    if os.getpid() == owner:
        for lane in lanes:
            for process in lane.values:
                process.close()
            lane.close()
            for process in lane.values:
                process.end()


def _groups(photos: Iterator[_Photo], most: int) -> Iterator[list[_Photo]]:
    """Group photos that are decoded together; a photo with a `url` is alone.

    If `photos` raises an exception, the photos before it are yielded first.
    """
    group: list[_Photo] = []
    try:
        for photo in photos:
            if is_alone := hasattr(photo, "url"):
                yield from filter(None, [group])
                group = []
            group.append(photo)
            if is_alone or len(group) == most:
                yield group
                group = []
    except Exception:
        yield from filter(None, [group])
        raise
    yield from filter(None, [group])
