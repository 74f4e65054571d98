"""A process that decodes photos; captioner.decoding.process starts it.

It reads photos from a socket and answers with JSON and pixels: a photo that takes it over cannot
make its parent run anything. It imports no torch, so that it takes little memory, and ends when the
socket does, however its parent ended.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from PIL import AvifImagePlugin

from captioner.decoding.decoder import Decoder
from captioner.vision.transform import TransformConfig

__all__ = ["READY", "Limits", "serve"]

READY = b"ready"
"""The first thing that a worker says."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one photo may cost.

    max_pixels: width times height; the header tells.
    seconds: to read and decode it; the time that it waits for room does not count.
    unasked: photos of at most so many pixels are decoded without asking for room.
    memory: bytes of address space that a worker may take beyond what it has at its start.
    nice: how far a worker stands back for other processes, 0 to 19.
    """

    max_pixels: int
    seconds: float
    unasked: int
    memory: int
    nice: int = 0


def serve(descriptor: int) -> None:
    """Answer photo by photo until the other side closes."""
    # An interrupt from the keyboard reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Pillow warns of odd metadata in photos that it reads all the same.
    warnings.simplefilter("ignore")
    # Several processes decode already; each thread of a decoder would take address space.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    connection: Connection[Any, Any] = Connection(descriptor)
    try:
        config, limits = connection.recv()
        connection.send_bytes(READY)
        _silence()
        _bound_memory(limits.memory)
        if limits.nice and hasattr(os, "nice"):
            os.nice(limits.nice)
        _answer(connection, config, limits)
    except (EOFError, ConnectionError):
        return


def _answer(connection: Connection[Any, Any], config: TransformConfig, limits: Limits) -> None:
    decode = Decoder(config, max_pixels=limits.max_pixels)

    def admit(pixels: int) -> None:
        if pixels > limits.unasked:
            _alarm(None)
            connection.send_bytes(json.dumps(pixels).encode())
            connection.recv()
            _alarm(limits.seconds)

    while True:
        photo, longest = connection.recv()
        _alarm(limits.seconds)
        answer = decode(photo, longest=longest, admit=admit)
        _alarm(None)
        connection.send_bytes(answer.head())
        connection.send_bytes(answer.pixels)


def _alarm(seconds: float | None) -> None:
    """End this process after a while, even inside a decoder; for when the parent cannot."""
    signal.alarm(0 if seconds is None else math.ceil(seconds) + 5)


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

        with open("/proc/self/statm") as file:  # noqa: PTH123
            now = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = now + budget if hard == resource.RLIM_INFINITY else min(now + budget, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (ImportError, OSError, ValueError):  # not Linux: the budget of pixels has to do
        return
