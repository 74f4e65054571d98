"""The child side of the decoding pool, and the messages between it and its parent.

The process does not import torch, to save memory. It ends when its socket is closed, even if the
parent was killed.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import socket
import struct
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import AvifImagePlugin

from captioner.shared.files import IS_WINDOWS
from captioner_serving.decoding.photo import decode

READY = b"ready"
"""The first message of a child."""

_POLL = 0.2  # seconds between checks of the deadline
_WAIT_ALL = 0 if IS_WINDOWS else socket.MSG_WAITALL
_SMALL = 4_000_000  # pixels of photos that need no budget; they take at most 50 MB
_SMALL_MESSAGE = 1 << 16  # bytes of a message that is sent with one call
_PIECE = 1 << 20  # bytes that are sent with one call; each may take longer than _POLL
_BYTES_PER_PIXEL = 32  # above what any decoder needs
_FILE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a photo."""

    max_pixels: int  # width times height; also limits the memory
    seconds: float  # to read and decode it; waiting for the pixel budget does not count
    nice: int = 0  # the priority of the process, 0 to 19


class Line:
    """Messages over a socket, each preceded by its length, with an optional deadline."""

    def __init__(self, own: socket.socket) -> None:
        self.socket, self._end = own, math.inf

    def end_in(self, seconds: float) -> None:
        """Set a deadline. After it, messages raise TimeoutError."""
        if self._end == math.inf:
            _return_after(self.socket, _POLL)
        self._end = time.monotonic() + seconds

    def send(self, *parts: bytes | memoryview) -> None:
        """Send a message, which may be in parts."""
        total = sum(map(len, parts))
        parts = (total.to_bytes(8, "big"), *parts)
        for part in [b"".join(parts)] if total < _SMALL_MESSAGE else parts:
            left = memoryview(part)
            while left:
                left = left[self._transfer(self.socket.send, left[:_PIECE]) :]

    def receive(self, most: int) -> memoryview:
        """Receive a message of at most `most` bytes; a longer one raises ValueError."""
        length = int.from_bytes(self._read(8), "big")
        if length > most:
            raise ValueError(f"the message has {length} bytes; the limit is {most}")
        return self._read(length)

    def _read(self, count: int) -> memoryview:
        data = np.empty(count, np.uint8).data  # a bytearray would be filled with zeros
        left = data
        while left:
            if not (received := self._transfer(self._fill, left)):
                raise EOFError
            left = left[received:]
        return data

    def _fill(self, data: memoryview) -> int:
        return self.socket.recv_into(data, 0, _WAIT_ALL)

    def _transfer(self, transfer: Callable[[memoryview], int], data: memoryview) -> int:
        """Call `transfer` until it transfers bytes; return their number."""
        while time.monotonic() < self._end:
            with suppress(BlockingIOError, TimeoutError):
                return transfer(data)
        raise TimeoutError


def _return_after(own: socket.socket, seconds: float) -> None:
    """Let calls of a socket return after some seconds, without data or with a part of it.

    For Python's timeouts each call would be two system calls. After each, a thread waits for the
    interpreter lock.
    """
    if IS_WINDOWS:
        own.settimeout(seconds)
        return
    timeval = struct.pack("ll", 0, int(1_000_000 * seconds))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        own.setsockopt(socket.SOL_SOCKET, option, timeval)


def connect(port: int) -> None:
    """Connect to the parent, and decode photos. The parent's token is on standard input."""
    own = socket.create_connection(("127.0.0.1", port))
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    Line(own).send(sys.stdin.buffer.read())
    serve(own.detach())


def serve(descriptor: int) -> None:
    """Decode photos until the parent closes the socket."""
    line = Line(socket.socket(fileno=descriptor))
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
            _reply(line, pixels)
            line.receive(0)
            _alarm(most)
            granted = pixels

    while True:
        photos, outputs = pickle.loads(line.receive(sys.maxsize))
        answers = []
        _alarm(most)
        for photo in photos:
            granted = _SMALL
            answers += decode(photo, outputs, max_pixels=limits.max_pixels, admit=admit)
        _alarm(0)
        heads = [answer.head() for answer in answers]
        _reply(line, heads, *(answer.pixels for answer in answers))


def _reply(line: Line, value: Any, *pixels: bytes | memoryview) -> None:
    """Send a value as JSON, preceded by the length of the JSON, and pixels."""
    head = json.dumps(value).encode()
    line.send(len(head).to_bytes(8, "big"), head, *pixels)


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
