"""What runs inside of a decoding process, and the line between it and its parent.

The process imports no torch, so that it takes little memory, and ends when its socket does, however
its parent ended.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import AvifImagePlugin

from captioner_serving.decoding.decoded import decode

__all__ = ["READY", "Limits", "Line", "StoppedError", "serve"]

READY = b"ready"
"""The first message of a process."""

_PIECE = 1 << 20  # bytes that are read at once
_POLL = 0.2  # seconds between two looks at whether the result is still wanted
_UNASKED = 4_000_000  # pixels that need no room; a photo of this size takes 50 MB at most
_BYTES_A_PIXEL = 32  # that Pillow and the decoders take for the oddest formats, and then some
_BYTES_BESIDE = 1 << 30  # for the file itself


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one photo may cost.

    max_pixels: width times height; the header tells. Memory is bounded by it, too.
    seconds: to read and decode it; the time that it waits for room does not count.
    nice: how far a process stands back for others, 0 to 19.
    """

    max_pixels: int
    seconds: float
    nice: int = 0


class StoppedError(Exception):
    """The result is no longer wanted."""


class Line:
    """Messages over a socket, each after its length, with a deadline that may be set."""

    def __init__(self, own: socket.socket) -> None:
        self.socket = own
        self._end: float | None = None
        self._is_stopped: Callable[[], bool] = lambda: False

    def end_in(self, seconds: float, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Raise TimeoutError from sending and receiving then, or StoppedError once stopped."""
        self._end, self._is_stopped = time.monotonic() + seconds, is_stopped

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._count_down()
        self.socket.sendall(len(message).to_bytes(8, "big"))
        self.socket.sendall(message)

    def receive(self, most: int) -> bytes:
        """Receive a message.

        Raises:
            ValueError: it has more than so many bytes.
            EOFError: the other side has closed.
        """
        length = int.from_bytes(self._read(8), "big")
        if length > most:
            raise ValueError(f"{length} bytes, where {most} are the most")
        return self._read(length)

    def _read(self, count: int) -> bytes:
        data = io.BytesIO()
        while (left := count - data.tell()) > 0:
            self._count_down(most=_POLL)
            try:
                piece = self.socket.recv(min(left, _PIECE))
            except TimeoutError:
                continue
            if not piece:
                raise EOFError
            data.write(piece)
        return data.getvalue()

    def _count_down(self, most: float = math.inf) -> None:
        if self._is_stopped():
            raise StoppedError
        if self._end is not None:
            if (left := self._end - time.monotonic()) <= 0:
                raise TimeoutError
            self.socket.settimeout(min(left, most))


def serve(descriptor: int) -> None:
    """Answer photo by photo until the other side closes."""
    # An interrupt from the keyboard reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Pillow warns of odd metadata in photos that it reads all the same.
    warnings.simplefilter("ignore")
    # Several processes decode already; each thread of a decoder would take address space.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    line = Line(socket.socket(fileno=descriptor))
    with suppress(EOFError, ConnectionError):
        limits = pickle.loads(line.receive(sys.maxsize))
        line.send(READY)
        _silence()
        _bound_memory(_BYTES_A_PIXEL * limits.max_pixels + _BYTES_BESIDE)
        if limits.nice:
            os.nice(limits.nice)
        _answer(line, limits)


def _answer(line: Line, limits: Limits) -> None:
    # Ends this process after a while, even inside a decoder; for when the parent cannot.
    most = math.ceil(limits.seconds) + 5
    granted = _UNASKED  # pixels of the photo under way that there is room for

    def admit(pixels: int) -> None:
        nonlocal granted
        if pixels > granted:
            signal.alarm(0)
            line.send(json.dumps(pixels).encode())
            line.receive(0)
            signal.alarm(most)
            granted = pixels

    while True:
        photo, outputs = pickle.loads(line.receive(sys.maxsize))
        granted = _UNASKED
        signal.alarm(most)
        answers = decode(photo, outputs, max_pixels=limits.max_pixels, admit=admit)
        signal.alarm(0)
        for answer in answers:
            line.send(answer.head())
            line.send(answer.pixels)


def _silence() -> None:
    """Drop what libtiff and libjpeg print: the errors say it already."""
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def _bound_memory(budget: int) -> None:
    """Turn a photo that takes all memory into a MemoryError, where the system can."""
    try:
        import resource

        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = now + budget if hard == resource.RLIM_INFINITY else min(now + budget, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (ImportError, OSError, ValueError):  # not Linux: the budget of pixels has to do
        return
