"""Decoding in worker processes: photos in, pixels out, whatever a file does to a worker.

Decoders written in C can be brought down by a damaged file, made to run for hours, or to take all
memory. Here each photo has a deadline, a limit of memory and a budget of pixels, in a process that
holds nothing but the photo. One thread looks after each worker: it sends a photo, waits for the
answer, and only then sends the next, so that the two sides of a socket never wait for each other.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

from captioner.closing import Closing
from captioner.decoding.budget import PixelBudget
from captioner.decoding.decoder import Decoded, Readable
from captioner.decoding.fair_threads import FairThreads
from captioner.decoding.process import DecodeProcess, DiedError, SlowError
from captioner.decoding.worker import Limits
from captioner.errors import (
    CaptionerError,
    ImageError,
    ImageNotFoundError,
    ImageTooLargeError,
    ImageTruncatedError,
)
from captioner.vision.image import MAX_PIXELS
from captioner.vision.transform import TransformConfig

__all__ = ["SECONDS", "DecodePool"]

SECONDS = 120.0
"""That one photo may take, unless somebody says otherwise."""

_QUEUED = 2  # photos a worker has at once in a stream: one to work on, and the next without a pause
_UNASKED = 4_000_000  # pixels; a photo of this size takes 50 MB at most
_BYTES_A_PIXEL = 32  # that Pillow and the decoders take for the oddest formats, and then some
_BYTES_BESIDE = 1 << 30  # for the file itself
_CARRIED = 1 << 28  # bytes of files, with which a stream of photos takes in no more of them
_KILLS = 3  # by the system, of one photo's workers, before it is said that memory is short

_Photo = TypeVar("_Photo", bound=Readable)


class DecodePool(Closing):
    """Worker processes that decode; a context manager, so that none outlives it.

    Args:
        transform: how a photo becomes a square.
        workers: processes.
        max_pixels: larger photos are refused.
        seconds: that one photo may take to be read and decoded.
        budget: pixels under way at once in all workers; a larger photo is decoded alone. None:
            twice `max_pixels`.
        nice: how far the workers stand back for other processes, 0 to 19.
        environment: variables that the workers need to read photos, such as what opens links; of
            this process's own they have nothing but the language.

    """

    def __init__(
        self,
        transform: TransformConfig,
        *,
        workers: int,
        max_pixels: int = MAX_PIXELS,
        seconds: float = SECONDS,
        budget: int | None = None,
        nice: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._transform = transform
        self._limits = Limits(
            max_pixels=max_pixels,
            seconds=seconds,
            unasked=_UNASKED,
            memory=_BYTES_A_PIXEL * max_pixels + _BYTES_BESIDE,
            nice=nice,
        )
        self._environment = environment or {}
        self._budget = PixelBudget(2 * max_pixels if budget is None else budget)
        self._closed = threading.Event()
        self._processes: dict[int, DecodeProcess] = {}  # of each thread, by its number
        self._workers = workers
        self._threads = FairThreads(workers, name="decoding", begin=self._begin, end=self._end)

    def submit(
        self, photo: Readable, *, longest: int | None = None, client: str = ""
    ) -> Future[Decoded]:
        """Have a photo decoded.

        A photo that cannot be decoded is a result with an `error`. The future raises CaptionerError
        where the photo is not to blame: no process can be started, memory is short, the pool is
        closed. A future that is cancelled before its turn costs nothing.

        Args:
            photo: a name and a way to read it; EncodedPhoto, where the bytes are at hand.
            longest: None makes the encoder's square; a number of pixels the whole picture, with
                neither side longer than this.
            client: whose photo it is; one client's photos do not keep another's waiting (see
                `FairThreads`). "": photos come in their order.

        """
        if not self._closed.is_set():
            return self._threads.submit(partial(self._decode, photo, longest), client)
        refused: Future[Decoded] = Future()
        refused.set_exception(_closed())
        return refused

    def decode(
        self, photos: Iterator[_Photo], *, ahead: int = 0
    ) -> Iterator[tuple[_Photo, Decoded]]:
        """Decode photos and give them back in their order; few are held at a time.

        Args:
            photos: an exception of theirs is raised after the photos before it.
            ahead: photos that may be decoded before they are asked for; bounds the memory, as does
                a limit on the bytes that photos carry with them.

        """
        most = self._workers * _QUEUED
        ahead = max(ahead, most)
        tasks: deque[tuple[_Photo, Future[Decoded]]] = deque()
        changed = threading.Event()
        problem: Exception | None = None
        more, carried = True, 0
        while more or tasks:
            changed.clear()
            while more and len(tasks) < ahead and carried < _CARRIED and _unfinished(tasks) < most:
                try:
                    photo = next(photos, None)
                except Exception as error:
                    photo, problem = None, error
                if photo is None:
                    more = False
                    break
                future = self.submit(photo)
                tasks.append((photo, future))
                carried += _bytes_of(photo)
                future.add_done_callback(lambda _: changed.set())
            if tasks and not tasks[0][1].done():
                changed.wait()
            while tasks and tasks[0][1].done():
                photo, future = tasks.popleft()
                carried -= _bytes_of(photo)
                yield photo, future.result()
        if problem is not None:
            raise problem

    def close(self) -> None:
        """End the workers; what is not decoded yet fails."""
        self._closed.set()
        for process in list(self._processes.values()):
            process.kill()
        self._threads.close()

    # One thread a worker

    def _begin(self) -> None:
        with suppress(Exception):  # what is wrong, the first photo will be told
            self._process()

    def _end(self) -> None:
        if process := self._processes.pop(threading.get_ident(), None):
            process.end()

    def _process(self) -> DecodeProcess:
        number = threading.get_ident()
        if number not in self._processes:
            self._processes[number] = DecodeProcess(
                self._transform, self._limits, self._environment
            )
        return self._processes[number]

    def _decode(self, photo: Readable, longest: int | None) -> Decoded:
        """Decode a photo, in fresh processes as long as it may not be its own fault."""
        crashed = killed = 0
        while not self._closed.is_set():
            try:
                return self._process().decode(photo, longest, self._budget)
            except SlowError:
                self._processes.pop(threading.get_ident(), None)
                return Decoded.failed(_too_slow(photo, self._limits.seconds))
            except DiedError as error:
                self._processes.pop(threading.get_ident(), None)
                if self._closed.is_set():
                    break
                if error.status == -signal.SIGKILL:  # the system is out of memory
                    killed += 1
                    if killed == _KILLS:
                        raise CaptionerError(
                            "the system is killing the decoding processes, probably because memory "
                            "is short: use fewer of them, or a lower limit of pixels"
                        ) from error
                    time.sleep(killed)
                else:
                    crashed += 1
                    if crashed > 1:
                        reason = f"{photo.name} crashed the image decoder"
                        reason = f"{reason} (status {error.status}): copy or export it again"
                        return Decoded.failed(ImageTruncatedError(reason))
        raise _closed()


def _bytes_of(photo: Readable) -> int:
    """Count what a photo carries with it; most only know where their bytes are."""
    return len(getattr(photo, "data", b""))


def _too_slow(photo: Readable, seconds: float) -> ImageError:
    if hasattr(photo, "url"):  # who decodes it also fetches it, which is what takes so long
        return ImageNotFoundError(
            f"{photo.name} takes more than {seconds:g} s to fetch and decode, as its link is slow "
            "or stalled: try it again later, or download it first"
        )
    reason = f"{photo.name} takes more than {seconds:g} s to decode: export it again, smaller"
    return ImageTooLargeError(reason)


def _unfinished(tasks: deque[tuple[_Photo, Future[Decoded]]]) -> int:
    return sum(not future.done() for _, future in tasks)


def _closed() -> CaptionerError:
    return CaptionerError("the decoding processes have been ended: open a new pool")
