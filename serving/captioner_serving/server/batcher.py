"""One model, one queue: what waits at the same moment is encoded and decoded together.

Nothing waits for company. When the model is free it takes what is there, be it one image; while it
works, others gather, and they are the next batch. So an idle server answers one photo as fast as
the library does, and a busy one finds its own batch size. Clients take turns (see `Turns`), and a
batch of costly images has fewer of them, so that nobody waits for all that somebody else has sent.

A lone image has all cores. As soon as more wait, two threads share them, with a batch each: while
one is in the encoder the other is in the decoder, and neither waits for the other at the end of
every operation.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from captioner.caption import Caption
from captioner.decoding.prepared import PreparedImage
from captioner.decoding.turns import Turns
from captioner.generation.config import GenerationConfig
from captioner_serving.server.problems import BusyError, ClosedError

__all__ = ["Batcher", "OnPlace", "Order"]


class Order(NamedTuple):
    """What is wanted of an image.

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
OnPlace = Callable[[int], None]
"""Told how many images of the queue come first, each time that changes, from any thread."""


@dataclass(eq=False)
class _Job:
    image: PreparedImage
    order: Order
    client: str
    on_place: OnPlace | None
    future: Future[Caption] = field(default_factory=Future)
    place: int | None = None  # as it was last told

    @cached_property
    def kind(self) -> Order:
        """What a batch has in common: all but how many captions are wanted.

        That too where words are checked: it is done for all captions of the batch's widest image.
        """
        if self.order.check_attention:
            return self.order
        return self.order._replace(generation=replace(self.order.generation, captions=1))

    def tell(self, place: int) -> None:
        """Say how many images come first, if that has changed."""
        if self.on_place is not None and place != self.place:
            self.place = place
            self.on_place(place)


class Batcher:
    """Runs a model on batches of what is waiting.

    Args:
        caption_batch: from images to their captions, in order, with as many alternatives as any
            image of the batch wants.
        max_batch: plain images in a batch; costly ones count as what they cost.
        capacity: what the images admitted and not yet answered may cost; one client may take all of
            it, and there is half as much again for clients that have few in it. A request that
            costs more is admitted when it can have all of it.
        before_batch: called in a model's thread, with the number of threads that may be at work at
            the same time.
        on_batch: told the size of each batch and the seconds that it took.
        threads: 1 or 2 that run the model.

    """

    def __init__(
        self,
        caption_batch: CaptionBatch,
        *,
        max_batch: int,
        capacity: int,
        before_batch: Callable[[int], None],
        on_batch: Callable[[int, float], None],
        threads: int = 1,
    ) -> None:
        self._caption_batch = caption_batch
        self._max_batch = max_batch
        self._capacity = capacity
        self._before_batch = before_batch
        self._on_batch = on_batch
        # One worker: batches are short, so that no thread need be kept free for other clients.
        self._turns: Turns[_Job] = Turns(1)
        self._changed = threading.Condition()
        self._admitted = 0  # places taken
        self._held: Counter[str] = Counter()  # of these, by client
        self._due = 0  # what is admitted costs, for Retry-After
        self._few = max(1, capacity // 16)
        self._closed = False
        self._seconds_each = 0.1  # of a plain image: a running mean, for Retry-After
        self._idle = threads
        self._begun: dict[int, float] = {}  # when each thread at work began its batch
        self._alone = False  # one thread is at work and has all cores
        self._threads = [
            threading.Thread(target=self._work, name=f"model {number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def closed(self) -> bool:
        """Whether new images are refused."""
        return self._closed

    @property
    def at_work_since(self) -> float | None:
        """When the oldest batch under way was begun, on time.monotonic's clock; None: none is."""
        with self._changed:
            return min(self._begun.values(), default=None)

    def admit(self, cost: int, client: str = "") -> None:
        """Reserve places for a client's images of this cost together; it must `release` them.

        Raises:
            BusyError: there is not so much room.
            ClosedError: the server is shutting down.

        """
        places = min(cost, self._capacity)
        with self._changed:
            if self._closed:
                raise ClosedError
            few = self._held[client] + places <= self._few
            if self._admitted + places > self._capacity + few * (self._capacity // 2):
                raise BusyError(max(1, round(self._due * self._seconds_each)))
            self._admitted += places
            self._held[client] += places
            self._due += cost

    @property
    def waiting(self) -> int:
        """How many images wait for the model."""
        return len(self._turns.in_order())

    def release(self, cost: int, client: str = "") -> None:
        """Give back the places of images of this cost together."""
        places = min(cost, self._capacity)
        with self._changed:
            self._admitted -= places
            self._held -= Counter({client: places})  # forgets who holds nothing
            self._due -= cost
            self._changed.notify_all()

    def submit(
        self,
        image: PreparedImage,
        order: Order,
        client: str = "",
        on_place: OnPlace | None = None,
    ) -> Future[Caption]:
        """Put an admitted image into the queue; a future cancelled before its batch costs nothing.

        The future may raise whatever this one image makes the model raise.
        """
        job = _Job(image, order, client, on_place)
        with self._changed:
            self._turns.put(job, client)
            if on_place is not None:
                job.tell(self._turns.in_order().index(job))
            self._changed.notify_all()
        return job.future

    def refuse(self) -> None:
        """Admit nothing more; what was admitted is finished."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new images, finish the admitted ones, and end the threads."""
        self.refuse()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            start = time.monotonic()
            self._before_batch(self._at_once())
            self._caption(batch)
            seconds = time.monotonic() - start
            self._on_batch(len(batch), seconds)
            with self._changed:
                each = seconds / sum(job.order.cost for job in batch)
                for job in batch:
                    self._turns.done(job.client, each * job.order.cost)
                self._seconds_each += 0.2 * (each / self._at_once() - self._seconds_each)
                del self._begun[threading.get_ident()]
                self._idle += 1
                self._alone = False

    def _at_once(self) -> int:
        return 1 if self._alone else len(self._threads)

    def _caption(self, jobs: list[_Job]) -> None:
        """Caption jobs of one kind; where that fails, each half, down to the one to blame."""
        try:
            widest = max((job.order for job in jobs), key=lambda order: order.generation.captions)
            results = self._caption_batch([job.image for job in jobs], widest)
            if len(results) != len(jobs):
                raise RuntimeError(f"{len(jobs)} images gave {len(results)} results")
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            middle = len(jobs) // 2
            self._caption(jobs[:middle])
            self._caption(jobs[middle:])
            return
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)

    def _next_batch(self) -> list[_Job]:
        """Wait for work, and take a thread's share of it; empty when all is done."""
        with self._changed:
            while True:
                batch, left = ([], []) if self._alone else self._take(self._turns.in_order())
                if batch:
                    self._idle -= 1
                    self._begun[threading.get_ident()] = time.monotonic()
                    self._alone = not left and self._idle == len(self._threads) - 1
                    for place, job in enumerate(left):
                        job.tell(place)
                    self._changed.notify_all()  # the rest is for another thread
                    return batch
                if self._closed and self._admitted == 0:
                    return []
                self._changed.wait()

    def _take(self, waiting: list[_Job]) -> tuple[list[_Job], list[_Job]]:
        """Take what is of the first one's kind, and leave as much to the other thread, if idle.

        Returns the batch, and what waits still.
        """
        batch: list[_Job] = []
        left: list[_Job] = []
        most = 1
        for job in waiting:
            if batch and (len(batch) >= most or job.kind != batch[0].kind):
                left.append(job)
                continue
            share = math.ceil(len(waiting) / self._idle)
            most = min(share, self._max_batch // job.order.cost)  # those of a kind cost the same
            self._turns.start(job, job.client)
            if job.future.set_running_or_notify_cancel():
                batch.append(job)
            else:
                self._turns.done(job.client, 0.0)
        return batch, left
