"""The child side of the decoding pool, and the messages between it and its parent.

The process does not import torch, to save memory. It ends when its socket is closed, even if the
parent was killed.
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

__all__ = ["READY", "Limits", "Line", "StoppedError", "connect", "serve"]

READY = b"ready"
"""The first message of a child."""

_CHUNK = 1 << 20  # bytes
_POLL = 0.2  # seconds between checks of is_stopped
_SMALL = 4_000_000  # pixels of photos that need no budget; they take at most 50 MB
_BYTES_PER_PIXEL = 32  # above what any decoder needs
_FILE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a photo.

    max_pixels: width times height; also limits the memory.
    seconds: the time to read and decode the photo; waiting for the pixel budget does not count.
    nice: the priority of the process, 0 to 19.
    """

    max_pixels: int
    seconds: float
    nice: int = 0


class StoppedError(Exception):
    """The caller no longer needs the result."""


class Line:
    """Messages over a socket, each preceded by its length, with an optional deadline."""

    def __init__(self, own: socket.socket) -> None:
        self.socket = own
        self._end: float | None = None
        self._is_stopped: Callable[[], bool] = lambda: False

    def end_in(self, seconds: float, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Set a deadline. After it, messages raise TimeoutError.

        When `is_stopped` returns True, messages raise StoppedError.
        """
        self._end, self._is_stopped = time.monotonic() + seconds, is_stopped

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._count_down()
        self.socket.sendall(len(message).to_bytes(8, "big"))
        self.socket.sendall(message)

    def receive(self, most: int) -> bytes:
        """Receive a message.

        Raises:
            ValueError: it has more than `most` bytes.
            EOFError: the other side closed the socket.
        """
        length = int.from_bytes(self._read(8), "big")
        if length > most:
            raise ValueError(f"the message has {length} bytes; the limit is {most}")
        return self._read(length)

    def _read(self, count: int) -> bytes:
        data = io.BytesIO()
        while (left := count - data.tell()) > 0:
            self._count_down(most=_POLL)
            try:
                piece = self.socket.recv(min(left, _CHUNK))
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


def connect(port: int) -> None:
    """Connect to the parent, and decode photos. The parent's token is on standard input."""
    own = socket.create_connection(("127.0.0.1", port))
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line = Line(own)
    line.send(sys.stdin.buffer.read())
    _serve(line)


def serve(descriptor: int) -> None:
    """Decode photos until the parent closes the socket."""
    _serve(Line(socket.socket(fileno=descriptor)))


def _serve(line: Line) -> None:
    # Ctrl-C reaches the whole process group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    # One thread, because threads take address space, which is limited; processes run in parallel.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    with suppress(EOFError, ConnectionError):
        limits = pickle.loads(line.receive(sys.maxsize))
        line.send(READY)
        _silence()
        _bound_memory(_BYTES_PER_PIXEL * limits.max_pixels + _FILE_BYTES)
        if limits.nice and hasattr(os, "nice"):
            os.nice(limits.nice)
        _answer(line, limits)


def _answer(line: Line, limits: Limits) -> None:
    # SIGALRM ends this process even inside a decoder, if the parent cannot kill it.
    most = math.ceil(limits.seconds) + 5
    granted = _SMALL  # pixels that may be decoded for the current photo

    def admit(pixels: int) -> None:
        nonlocal granted
        if pixels > granted:
            _alarm(0)
            line.send(json.dumps(pixels).encode())
            line.receive(0)
            _alarm(most)
            granted = pixels

    while True:
        photo, outputs = pickle.loads(line.receive(sys.maxsize))
        granted = _SMALL
        _alarm(most)
        answers = decode(photo, outputs, max_pixels=limits.max_pixels, admit=admit)
        _alarm(0)
        for answer in answers:
            line.send(answer.head())
            line.send(answer.pixels)


def _alarm(seconds: int) -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _silence() -> None:
    """Suppress messages of libtiff and libjpeg; exceptions have the cause."""
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def _bound_memory(budget: int) -> None:
    """Limit the address space, so that large allocations raise MemoryError."""
    try:
        import resource

        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = now + budget if hard == resource.RLIM_INFINITY else min(now + budget, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (ImportError, OSError, ValueError):  # not Linux
        return
