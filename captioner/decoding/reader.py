"""The one way to photos that anybody may have made: photos in, pixels out, whatever a file does.

Decoders written in C can be brought down by a damaged file, made to run for hours, or to take all
memory. Here each photo has a deadline, a limit of memory and a budget of pixels, in a process that
holds nothing but the photo. One thread looks after each process: it sends a photo and waits for the
answer; of the clients that wait, the one who has taken the least is next.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from PIL import Image

from captioner.closing import Closing
from captioner.decoding.decoded import Decoded, EncodedPhoto, Readable, decode
from captioner.decoding.process import DecodeProcess, DiedError, Limits
from captioner.decoding.turns import Budget, FairThreads
from captioner.errors import (
    CaptionerError,
    ConfigError,
    ImageError,
    ImageNotFoundError,
    ImageTooLargeError,
    ImageTruncatedError,
)
from captioner.vision.image import MAX_PIXELS, FileSource, image_bytes, source_name
from captioner.vision.metadata import segments
from captioner.vision.transform import TransformConfig

__all__ = ["SECONDS", "Reader", "is_ordinary"]

SECONDS = 120.0
"""That one photo may take, unless somebody says otherwise."""

_LONGEST = 86_400  # seconds; a day
_CARRIED = 1 << 28  # bytes of files, with which a stream of photos takes in no more of them
_KILLS = 3  # by the system, of one photo's processes, before memory is called short

_ORDINARY = 30_000_000  # pixels; phones have 12 to 24 million, decoded at a half in 65 to 130 ms
_SEGMENTS = 1000  # before the pixels; a reader takes its time for each, and cameras write a few
_BESIDE = 4_000_000  # bytes before the pixels; a profile has one to three

_Photo = TypeVar("_Photo", bound=Readable)


class Reader(Closing):
    """Opens photos in processes of its own, which start with the first photo.

    They import no script, and end with this process, or when this object is closed or forgotten.
    They can be left out: then a file that brings a decoder down, or takes all memory, takes this
    process with it.

    Args:
        transform: how a photo becomes a square.
        workers: processes.
        quick: further processes, for JPEGs whose time their header tells (`is_ordinary`): these
            never wait behind what may take longer.
        max_pixels: larger photos are refused.
        seconds: that one photo may take to be read and decoded.
        budget: pixels under way at once in all workers; a larger photo is decoded alone. None:
            twice `max_pixels`.
        nice: how far the workers stand back for other processes, 0 to 19.
        environment: variables that the processes need to read photos, such as what opens links; of
            this process's own they have nothing but the language.
        in_process: decode in this process, without limits of time and memory.

    Raises:
        ConfigError: `max_pixels` is below 1, or `seconds` not above 0.

    """

    def __init__(
        self,
        transform: TransformConfig,
        *,
        workers: int = 1,
        quick: int = 0,
        max_pixels: int = MAX_PIXELS,
        seconds: float = SECONDS,
        budget: int | None = None,
        nice: int = 0,
        environment: Mapping[str, str] | None = None,
        in_process: bool = False,
    ) -> None:
        if max_pixels < 1:
            raise ConfigError(f"max_pixels {max_pixels} is out of range: it is at least 1")
        if not 0 < seconds <= _LONGEST:
            raise ConfigError(
                f"seconds {seconds:g} is out of range: use above 0, at most {_LONGEST}"
            )
        self._transform, self._max_pixels, self._workers = transform, max_pixels, workers
        self._in_process = in_process or os.name != "posix"
        lane = partial(
            _Lane,
            transform,
            environment=environment or {},
            budget=2 * max_pixels if budget is None else budget,
        )
        limits = Limits(max_pixels=max_pixels, seconds=seconds)
        self._lanes = [partial(lane, replace(limits, nice=nice), workers)]
        if quick:
            self._lanes.append(partial(lane, limits, quick))
        self._running: tuple[int, list[_Lane]] = _NONE

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the settings: a process is nobody else's."""
        return {**vars(self), "_running": _NONE}

    def start(self) -> None:
        """Start the processes now: they import what they need while something else is done."""
        if not self._in_process:
            self._started()

    def _started(self) -> list[_Lane]:
        with _starting:
            # A fork has the memory of its parent, but none of its threads.
            if self._running[0] != os.getpid():
                self._running = os.getpid(), [lane() for lane in self._lanes]
                weakref.finalize(self, _close, *self._running)
            return self._running[1]

    def submit(
        self, photo: Readable, *, longest: int | None = None, client: str = ""
    ) -> Future[Decoded]:
        """Have a photo decoded.

        A photo that cannot be decoded is a result with an `error`. The future raises CaptionerError
        where the photo is not to blame: no process can be started, memory is short, the reader is
        closed. A future that is cancelled before its turn costs nothing.

        Args:
            photo: a name and a way to read it; EncodedPhoto, where the bytes are at hand.
            longest: None makes the encoder's square; a number of pixels the whole picture, with
                neither side longer than this.
            client: whose photo it is; one client's photos do not keep another's waiting (see
                `Turns`). "": photos come in their order.

        """
        if self._in_process:
            ready: Future[Decoded] = Future()
            ready.set_result(
                decode(photo, self._transform, longest=longest, max_pixels=self._max_pixels)
            )
            return ready
        patient, *quick = self._started()
        is_quick = quick and longest is None and is_ordinary(getattr(photo, "data", b""))
        return (quick[0] if is_quick else patient).submit(photo, longest, client)

    def stream(
        self, photos: Iterator[_Photo], *, ahead: int = 0
    ) -> Iterator[tuple[_Photo, Decoded]]:
        """Decode photos and give them back in their order; few are held at a time.

        Args:
            photos: an exception of theirs is raised after the photos before it.
            ahead: photos that may be decoded before they are asked for; bounds the memory, as does
                a limit on the bytes that photos carry with them.

        """
        ahead = max(ahead, 2 * self._workers)
        tasks: deque[tuple[_Photo, Future[Decoded]]] = deque()
        problem: Exception | None = None
        carried = 0
        while tasks or problem is None:
            while problem is None and len(tasks) < ahead and carried < _CARRIED:
                try:
                    photo = next(photos)
                except Exception as error:
                    problem = error
                else:
                    tasks.append((photo, self.submit(photo)))
                    carried += _bytes_of(photo)
            if tasks:
                photo, future = tasks.popleft()
                yield photo, future.result()
                carried -= _bytes_of(photo)
        if problem is not None and not isinstance(problem, StopIteration):
            raise problem

    def square(self, source: FileSource) -> Decoded:
        """Bring a file to the encoder's square, or say what is wrong with it.

        Raises:
            CaptionerError: no process can be started, or memory is short.

        """
        try:
            # Read here: a path may be a pipe of this process, or one of its open files.
            photo = EncodedPhoto(source_name(source), image_bytes(source))
        except ImageError as error:
            return Decoded.failed(error)
        return self.submit(photo).result()

    def picture(
        self, source: FileSource | Readable, *, longest: int | None = None, client: str = ""
    ) -> Image.Image:
        """Open a whole photo, neither side longer than `longest` pixels, where that is given.

        Raises:
            ImageError: it cannot be opened.
            CaptionerError: no process can be started, or memory is short.

        """
        if isinstance(source, str | bytes | os.PathLike):
            source = EncodedPhoto(source_name(source), image_bytes(source))
        longest = self._max_pixels if longest is None else longest
        decoded = self.submit(source, longest=longest, client=client).result()
        decoded.check()
        return Image.frombytes("RGB", decoded.shape, decoded.pixels)

    def close(self) -> None:
        """End the processes; what is not decoded yet fails."""
        _close(*self._running)


_starting = threading.Lock()
_NONE: tuple[int, list[_Lane]] = -1, []


def _close(owner: int, lanes: list[_Lane]) -> None:
    if os.getpid() == owner:
        for lane in lanes:
            lane.close()


class _Lane(Closing):
    """Processes of one kind, each with a thread that looks after it."""

    def __init__(
        self,
        transform: TransformConfig,
        limits: Limits,
        workers: int,
        *,
        environment: Mapping[str, str],
        budget: int,
    ) -> None:
        self._start = partial(DecodeProcess, transform, limits, environment)
        self._seconds, self._budget = limits.seconds, Budget(budget)
        self._closed = threading.Event()
        self._processes: dict[int, DecodeProcess] = {}  # of each thread, by its number
        self._threads = FairThreads(workers, name="decoding", begin=self._begin, end=self._end)

    def submit(self, photo: Readable, longest: int | None, client: str) -> Future[Decoded]:
        if not self._closed.is_set():
            return self._threads.submit(partial(self._decode, photo, longest), client)
        refused: Future[Decoded] = Future()
        refused.set_exception(_ended())
        return refused

    def close(self) -> None:
        self._closed.set()
        for process in list(self._processes.values()):
            process.kill()
        self._threads.close()

    def _begin(self) -> None:
        with suppress(Exception):  # it will happen to the first photo, too
            self._process()

    def _end(self) -> None:
        if process := self._processes.pop(threading.get_ident(), None):
            process.end()

    def _process(self) -> DecodeProcess:
        number = threading.get_ident()
        if number not in self._processes:
            self._processes[number] = self._start()
        return self._processes[number]

    def _decode(self, photo: Readable, longest: int | None) -> Decoded:
        """Decode a photo, in fresh processes as long as it may not be its own fault."""
        crashed = killed = 0
        while not self._closed.is_set():
            try:
                return self._process().decode(photo, longest, self._budget)
            except TimeoutError:
                self._processes.pop(threading.get_ident(), None)
                return Decoded.failed(_too_slow(photo, self._seconds))
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
        raise _ended()


def is_ordinary(data: bytes) -> bool:
    """Whether a file is a JPEG that is decoded in one pass, and not very large.

    That is: baseline, grey or of three colours (inks may have a profile, which takes time), all of
    them in its first scan, at which a decoder stops, with little before it. Its time goes with
    its pixels and nothing else.
    """
    colours = 0
    if not data.startswith(b"\xff\xd8"):
        return False
    for number, (marker, begin, _) in enumerate(segments(data[:_BESIDE])):
        if marker == 0xDA:
            return 0 < colours == int.from_bytes(data[begin : begin + 1])
        if number == _SEGMENTS:
            return False
        if marker == 0xC0 and begin + 6 <= len(data):
            height, width, colours = struct.unpack_from(">xHHB", data, begin)
            if width * height > _ORDINARY or colours not in (1, 3):
                return False
        elif not (marker >= 0xE0 or marker in (0xC4, 0xDB, 0xDD)):
            return False  # progressive, lossless, arithmetic
    return False


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


def _ended() -> CaptionerError:
    return CaptionerError("the decoding processes have been ended: open a new reader")
