"""Dynamic batching for one model: waiting images with equal settings form a batch.

A batch may have one image. While it runs, new images wait. When it ends, the next batch waits
briefly for further images with the same settings, because larger batches take less time per image.
Clients take turns (see `FairQueue`). Images with expensive settings have smaller batches, so one
client cannot block the others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from captioner.caption import Caption
from captioner.captioner import PreparedImage
from captioner.generation.config import GenerationConfig
from captioner_serving.decoding.fair_queue import FairQueue
from captioner_serving.server.errors import BusyError, ClosedError

# Limits of the wait, as shares of the last batch's time (at most _LONGEST seconds). _GATHER: the
# whole wait. _IDLE: the wait if no request comes or ends and no image is being decoded.
_GATHER, _IDLE, _LONGEST = 1 / 3, 1 / 16, 1.5


class JobSettings(NamedTuple):
    """The settings of an image; images with equal settings can share a batch."""

    generation: GenerationConfig
    check_attention: bool = False  # measure the effect of each word

    @property
    def cost(self) -> int:
        """The approximate time, relative to an image with default settings."""
        checked = self.generation.captions if self.check_attention else 0
        return 1 + self.generation.beam_size // 15 + checked


CaptionBatch = Callable[[Sequence[PreparedImage], JobSettings], Sequence[Caption]]


@dataclass(eq=False)
class _Job:
    image: PreparedImage
    settings: JobSettings
    client: str
    future: Future[Caption] = field(default_factory=Future)


class _Finished(NamedTuple):
    """A finished batch."""

    settings: JobSettings
    present: int  # the number of its images, and of waiting images with the same settings
    end: float  # time.monotonic()
    seconds: float


class Batcher:
    """Runs a model on batches of waiting images with equal settings, in one thread.

    `max_batch` is the largest total cost of a batch, `capacity` that of all admitted images. One
    client may use all of the capacity; clients with few images may exceed it by half. A request
    that costs more than the capacity is admitted only if no other request is.
    """

    def __init__(self, caption_batch: CaptionBatch, *, max_batch: int, capacity: int) -> None:
        self._caption_batch = caption_batch
        self._max_batch, self._capacity = max_batch, capacity
        self._turns: FairQueue[_Job] = FairQueue(1)
        self._changed = threading.Condition()
        self._reserved: Counter[str] = Counter()  # capacity in use, by client
        self._pending_cost = 0  # the cost of all admitted images, for Retry-After
        self._small_share = max(1, capacity // 16)
        self.closed = self._stopping = False  # closed: new images are refused
        self._seconds_per_cost = 0.1  # a running mean, for Retry-After
        self.busy_since: float | None = None  # when the running batch began (time.monotonic)
        self._last: _Finished | None = None
        self._decoding = 0  # images in `decoding`
        self._last_change = 0.0  # when the last request was admitted or ended (time.monotonic())
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    @contextmanager
    def admit(self, cost: int, client: str = "") -> Iterator[None]:
        """Reserve capacity for a client during the block; `cost`: the total cost of its images.

        Raises BusyError or ClosedError.
        """
        places = min(cost, self._capacity)
        with self._changed:
            if self.closed:
                raise ClosedError
            is_small = self._reserved[client] + places <= self._small_share
            if self._reserved.total() + places > self._capacity + is_small * (self._capacity // 2):
                raise BusyError(max(1, round(self._pending_cost * self._seconds_per_cost)))
            self._reserved[client] += places
            self._pending_cost += cost
            self._last_change = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= Counter({client: places})  # also removes clients with zero
                self._pending_cost -= cost
                self._last_change = time.monotonic()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Count an image as being decoded until it is submitted; both happen in the block."""
        with self._changed:
            self._decoding += 1
        try:
            yield
        finally:
            with self._changed:
                self._decoding -= 1
                self._changed.notify()

    def submit(
        self, image: PreparedImage, settings: JobSettings, client: str = ""
    ) -> Future[Caption]:
        """Add an admitted image to the queue.

        If the model raises an exception for this image, the future raises it too. If the future is
        cancelled before its batch begins, the image is skipped.
        """
        job = _Job(image, settings, client)
        with self._changed:
            if self._stopping:
                job.future.set_exception(ClosedError())
                return job.future
            self._turns.put(job, client)
            self._changed.notify()
        return job.future

    def refuse(self) -> None:
        """Refuse new images; admitted ones are finished."""
        self.closed = True

    def close(self) -> None:
        """Refuse new images, finish the waiting ones, and stop the thread."""
        with self._changed:
            self.closed = self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            start = time.monotonic()
            self._caption(batch)
            end, settings = time.monotonic(), batch[0].settings
            seconds = (end - start) / (len(batch) * settings.cost)
            with self._changed:
                self.busy_since = None
                present = len(batch) + self._waiting_with(settings)
                self._last = _Finished(settings, present, end, end - start)
                for job in batch:
                    self._turns.done(job.client, seconds * job.settings.cost)
                self._seconds_per_cost += 0.2 * (seconds - self._seconds_per_cost)

    def _next_batch(self) -> list[_Job]:
        """Wait for the next batch and return it; empty when closed and no image waits."""
        with self._changed:
            while True:
                while (delay := self._delay()) is None or delay > 0:
                    self._changed.wait(delay)
                if (batch := self._take()) or self._stopping:
                    break
            self.busy_since = time.monotonic()
            return batch

    def _delay(self) -> float | None:
        """Return the seconds to wait for more images; None: until one arrives."""
        waiting, last = self._turns.in_order(), self._last
        if not waiting:
            return 0 if self._stopping else None
        settings = waiting[0].settings
        if self.closed or last is None or settings != last.settings:
            return 0
        if self._waiting_with(settings) >= min(last.present, self._most(settings)):
            return 0
        seconds = min(last.seconds, _LONGEST)
        until = last.end + _GATHER * seconds
        if not self._decoding:
            until = min(until, max(last.end, self._last_change) + _IDLE * seconds)
        return until - time.monotonic()

    def _waiting_with(self, settings: JobSettings) -> int:
        """Return the number of waiting images with these settings."""
        return sum(job.settings == settings for job in self._turns.in_order())

    def _most(self, settings: JobSettings) -> int:
        """Return the largest number of images in a batch."""
        return max(1, self._max_batch // settings.cost)

    def _take(self) -> list[_Job]:
        """Take the next job, and others with the same settings."""
        batch: list[_Job] = []
        for job in self._turns.in_order():
            if batch and job.settings != batch[0].settings:
                continue
            if len(batch) >= self._most(job.settings):
                break
            self._turns.start(job, job.client)
            if job.future.set_running_or_notify_cancel():
                batch.append(job)
            else:
                self._turns.done(job.client, 0.0)
        return batch

    def _caption(self, jobs: list[_Job]) -> None:
        """Caption a batch; if that fails, caption each image alone to find the faulty one."""
        try:
            captions = self._caption_batch([job.image for job in jobs], jobs[0].settings)
            answered = list(zip(jobs, captions, strict=True))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._caption([job])
            return
        for job, caption in answered:
            job.future.set_result(caption)
