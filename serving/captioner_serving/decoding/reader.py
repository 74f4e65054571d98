"""The decoding pool: untrusted photos in, pixels or pictures out.

Decoders written in C can be brought down by a damaged file, made to run for hours, or to take all
memory. Here each photo has a deadline, a limit of memory and a budget of pixels, in a process that
holds nothing but the photo. One thread looks after each process: it sends a photo and waits for the
answer; of the clients that wait, the one who has taken the least is next.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from PIL import Image

from captioner.closing import Closing
from captioner.errors import ConfigError
from captioner.vision.image import MAX_PIXELS, FileSource, image_bytes, source_name
from captioner.vision.jpeg import is_ordinary
from captioner.vision.transform import TransformConfig
from captioner_serving.decoding.child import Limits
from captioner_serving.decoding.decoded import (
    Decoded,
    EncodedPhoto,
    Output,
    Readable,
    Square,
    Whole,
    decode,
)
from captioner_serving.decoding.fair_queue import Budget, FairThreads
from captioner_serving.decoding.process import DecodeProcess, closed_error

__all__ = ["SECONDS", "Reader"]

SECONDS = 120.0
"""That one photo may take, unless somebody says otherwise."""

_LONGEST = 86_400  # seconds; a day
_CARRIED = 1 << 28  # bytes of files, with which a stream of photos takes in no more of them
_Photo = TypeVar("_Photo", bound=Readable)
_Result = TypeVar("_Result")
_Lanes = list[FairThreads[DecodeProcess]]


class Reader(Closing):
    """Opens photos in processes of its own, which start with the first photos.

    The processes import no script, and end with this process, or when this object is closed or
    collected.

    Args:
        transform: how a photo becomes a square.
        workers: processes.
        fetching: further processes for photos with a `url`: slow hosts keep no other photo waiting.
        quick: further processes, for JPEGs whose time their header tells (`is_ordinary`): these
            never wait behind what may take longer.
        max_pixels: larger photos are refused.
        seconds: that one photo may take to be read and decoded.
        budget: pixels under way at once in a lane; a larger photo is decoded alone. None:
            twice `max_pixels`.
        nice: how far the workers stand back for other processes, 0 to 19.
        environment: variables that the processes need to read photos, such as what opens links; of
            this process's own they have nothing but the language.
        in_process: decode in this process, without limits of time and memory.

    Raises ConfigError: `max_pixels` is below 1, or `seconds` not above 0.
    """

    def __init__(
        self,
        transform: TransformConfig,
        *,
        workers: int = 1,
        quick: int = 0,
        fetching: int = 0,
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
        self._transform, self._max_pixels, self._seconds = transform, max_pixels, seconds
        self._workers, self._quick, self._fetching, self._nice = workers, quick, fetching, nice
        self._budget = 2 * max_pixels if budget is None else budget
        self._environment = environment or {}
        self._in_process = in_process or os.name != "posix"
        self._closed = False
        self._running: tuple[int, _Lanes] = _NONE

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the settings: a process is nobody else's."""
        return {**vars(self), "_running": _NONE}

    def start(self) -> None:
        """Start the processes now: they import what they need while something else is done."""
        if not self._in_process:
            for lane in self._lanes():
                for _ in lane.values:
                    lane.submit(DecodeProcess.start)  # what fails will fail with a photo, too

    def _lanes(self) -> _Lanes:
        """Return the threads, each with its process: for all photos, ordinary ones, and links."""
        with _starting:
            # A fork has the memory of its parent, but none of its threads.
            if self._running[0] != os.getpid():
                counts = ((self._workers, self._nice), (self._quick, 0), (self._fetching, 0))
                lanes = [self._lane(count, nice) for count, nice in counts]
                self._running = os.getpid(), lanes
                weakref.finalize(self, _close, *self._running)
            return self._running[1]

    def _lane(self, count: int, nice: int) -> FairThreads[DecodeProcess]:
        limits = Limits(max_pixels=self._max_pixels, seconds=self._seconds, nice=nice)
        budget, environment = Budget(self._budget), self._environment
        return FairThreads(
            [DecodeProcess(limits, budget=budget, environment=environment) for _ in range(count)],
            name="decoding",
        )

    def submit(
        self, photo: Readable, *, longest: int | None = None, client: str = ""
    ) -> Future[Decoded]:
        """Decode a photo; see `produce`.

        Args:
            photo: a name and a way to read it; EncodedPhoto, where the bytes are at hand.
            longest: None makes the encoder's square; a number of pixels the whole picture, with
                neither side longer than this.
            client: as for `produce`.
        """
        return self._submit(photo, self._output(longest), client, lambda results: results[0])

    def produce(
        self,
        photo: Readable,
        outputs: Sequence[Output],
        *,
        client: str = "",
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Future[list[Decoded]]:
        """Read a photo once and make the outputs in a decoding process.

        A photo that cannot be decoded gives results with an `error`. The future raises
        CaptionerError where the photo is not to blame: no process can be started, memory is short,
        the reader is closed. A future that is cancelled before its turn costs nothing.

        Args:
            photo: a name and a way to read it.
            outputs: what to make of it.
            client: whose photo it is; clients take turns (see `FairQueue`). "": photos come in
                their order.
            is_stopped: asked while a process works; True kills the process.
        """
        return self._submit(photo, outputs, client, lambda results: results, is_stopped)

    def _submit(
        self,
        photo: Readable,
        outputs: Sequence[Output],
        client: str,
        finish: Callable[[list[Decoded]], _Result],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Future[_Result]:
        done: Future[_Result] = Future()
        if self._closed:
            done.set_exception(closed_error())
            return done
        if self._in_process:
            done.set_result(finish(decode(photo, outputs, max_pixels=self._max_pixels)))
            return done
        lane, quick, fetching = self._lanes()
        if self._fetching and hasattr(photo, "url"):
            lane = fetching
        elif self._quick and all(isinstance(output, Square) for output in outputs):
            lane = quick if is_ordinary(getattr(photo, "data", b"")) else lane
        return lane.submit(
            lambda process: finish(process.decode(photo, outputs, is_stopped)), client
        )

    def _output(self, longest: int | None) -> list[Output]:
        return [Square(self._transform) if longest is None else Whole(longest)]

    def stream(
        self, photos: Iterator[_Photo], *, ahead: int = 1
    ) -> Iterator[tuple[_Photo, Decoded]]:
        """Decode photos, and give them back in their order.

        What `photos` raises is raised after the photos before it.

        Args:
            photos: what to decode.
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

    def read(self, source: FileSource | Readable, *, longest: int | None = None) -> Decoded:
        """Decode a photo or file now; arguments as for `submit`.

        Raises:
            ImageError: it cannot be opened.
            CaptionerError: no process can be started, or memory is short.
        """
        if isinstance(source, str | bytes | os.PathLike):
            # Read here: a path may be a pipe of this process, or one of its open files.
            source = EncodedPhoto(source_name(source), image_bytes(source))
        decoded = self.submit(source, longest=longest).result()
        decoded.check()
        return decoded

    def picture(self, source: FileSource | Readable) -> Image.Image:
        """Open a whole photo.

        Raises: as `read` does.
        """
        return self.read(source, longest=self._max_pixels).picture()

    def close(self) -> None:
        """End the processes; what is not decoded yet fails."""
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


def _bytes_of(photo: Readable) -> int:
    """Count what a photo carries with it; most only know where their bytes are."""
    return len(getattr(photo, "data", b""))
