"""One model, one queue: what waits for the same at the same moment is captioned together.

Nothing waits for company. The model takes what is there, be it one image; while it works, others
gather, and those of one order are the next batch. Clients take turns (see `FairQueue`). A batch of
costly images has fewer of them, so that nobody waits for all that somebody else has sent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from captioner.caption import Caption
from captioner.generation.config import GenerationConfig
from captioner.vision.prepared import PreparedImage
from captioner_serving.decoding.fair_queue import FairQueue
from captioner_serving.server.problems import BusyError, ClosedError

__all__ = ["Batcher", "Order", "Place"]


class Order(NamedTuple):
    """What is wanted of an image; images of equal orders may share a batch.

    generation: how it is to be captioned.
    check_attention: whether the words get their effect.
    sentence: given to be checked, in place of one that the model makes.
    """

    generation: GenerationConfig
    check_attention: bool = False
    sentence: Caption | None = None

    @property
    def cost(self) -> int:
        """As many plain images take about as long.

        On two cores a beam of 20 takes 1.6 times as long as one of 5, and checking a caption's
        words as long again as captioning a plain image.
        """
        checked = self.generation.captions if self.check_attention else 0
        return 1 + self.generation.beam_size // 15 + checked


CaptionBatch = Callable[[Sequence[PreparedImage], Order], Sequence[Caption]]


@dataclass(eq=False)
class Place:
    """A place in the queue.

    ahead: images that come first, as things stand now.
    admitted: set when the queue has room for the whole request.
    """

    ahead: int = 0
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _Job:
    image: PreparedImage
    order: Order
    client: str
    place: Place
    future: Future[Caption] = field(default_factory=Future)


class Batcher:
    """Runs a model on batches of what is waiting, in one thread.

    Args:
        caption_batch: from images and the order of all of them to their captions.
        max_batch: plain images in a batch; costly ones count as what they cost.
        capacity: what the images admitted and not yet answered may cost; one client may take all of
            it, and there is half as much again for clients that have few in it. A request that
            costs more is admitted when it can have all of it.
    """

    def __init__(self, caption_batch: CaptionBatch, *, max_batch: int, capacity: int) -> None:
        self._caption_batch = caption_batch
        self._max_batch, self._capacity = max_batch, capacity
        self._turns: FairQueue[_Job] = FairQueue(1)
        self._changed = threading.Condition()
        self._held: Counter[str] = Counter()  # places taken, by client
        self._due = 0  # what is admitted costs, for Retry-After
        self._few = max(1, capacity // 16)
        self._closed = self._ending = False
        self._seconds_each = 0.1  # of a plain image: a running mean, for Retry-After
        self._begun: float | None = None
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether new images are refused."""
        return self._closed

    @property
    def waiting(self) -> int:
        """How many images wait for the model."""
        return len(self._turns.in_order())

    @property
    def at_work_since(self) -> float | None:
        """When the batch under way was begun, on time.monotonic's clock; None: none is."""
        return self._begun

    @contextmanager
    def admit(self, cost: int, client: str = "") -> Iterator[None]:
        """Keep places for a client's images of this cost together, for as long as the block runs.

        Raises:
            BusyError: there is not so much room.
            ClosedError: the server is shutting down.
        """
        places = min(cost, self._capacity)
        with self._changed:
            if self._closed:
                raise ClosedError
            few = self._held[client] + places <= self._few
            if self._held.total() + places > self._capacity + few * (self._capacity // 2):
                raise BusyError(max(1, round(self._due * self._seconds_each)))
            self._held[client] += places
            self._due += cost
        try:
            yield
        finally:
            with self._changed:
                self._held -= Counter({client: places})  # forgets who holds nothing
                self._due -= cost

    def submit(
        self,
        image: PreparedImage,
        order: Order,
        client: str = "",
        place: Place | None = None,
    ) -> Future[Caption]:
        """Put an admitted image into the queue; a future cancelled before its batch costs nothing.

        The future may raise whatever this one image makes the model raise. A place that is given is
        kept true until the image's batch begins.
        """
        job = _Job(image, order, client, place or Place())
        with self._changed:
            if self._ending:
                job.future.set_exception(ClosedError())
                return job.future
            self._turns.put(job, client)
            self._number()
            self._changed.notify()
        return job.future

    def refuse(self) -> None:
        """Admit nothing more; what was admitted is finished."""
        self._closed = True

    def close(self) -> None:
        """Refuse new images, finish those that wait, and end the thread."""
        with self._changed:
            self._closed = self._ending = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            start = time.monotonic()
            self._caption(batch)
            each = (time.monotonic() - start) / sum(job.order.cost for job in batch)
            with self._changed:
                self._begun = None
                for job in batch:
                    self._turns.done(job.client, each * job.order.cost)
                self._seconds_each += 0.2 * (each - self._seconds_each)

    def _next_batch(self) -> list[_Job]:
        """Wait for work, and take it; empty when all is done."""
        with self._changed:
            while not (batch := self._take()) and not self._ending:
                self._changed.wait()
            self._begun = time.monotonic()
            self._number()
            return batch

    def _take(self) -> list[_Job]:
        """Take the one whose turn it is and others of its order."""
        batch: list[_Job] = []
        for job in self._turns.in_order():
            if batch and job.order != batch[0].order:
                continue
            if len(batch) >= max(1, self._max_batch // job.order.cost):
                break
            self._turns.start(job, job.client)
            job.place.ahead = 0
            if job.future.set_running_or_notify_cancel():
                batch.append(job)
            else:
                self._turns.done(job.client, 0.0)
        return batch

    def _number(self) -> None:
        for ahead, job in enumerate(self._turns.in_order()):
            job.place.ahead = ahead

    def _caption(self, jobs: list[_Job]) -> None:
        """Caption jobs of one order; where that fails, each alone: the fault is of one of them."""
        try:
            captions = self._caption_batch([job.image for job in jobs], jobs[0].order)
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
