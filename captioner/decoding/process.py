"""A process that decodes photos: as its parent sees it, and what runs inside.

A photo may be made to take a decoder over, or to keep it busy for hours, or to take all memory. So
it is decoded where there is nothing else: without an environment to speak of, with a deadline and a
limit of memory. What comes back is JSON and pixels, which run nothing; their lengths are checked.

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
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import AvifImagePlugin

from captioner.decoding.decoded import Decoded, Readable, decode
from captioner.decoding.turns import Budget
from captioner.errors import CaptionerError
from captioner.vision.transform import TransformConfig

__all__ = ["DecodeProcess", "DiedError", "Limits", "serve"]

_READY = b"ready"
_START_SECONDS = 60.0
_HEAD = 1 << 20  # bytes of an answer beside the pixels: a detail may name a photo
_PIECE = 1 << 20  # bytes that are read at once
_UNASKED = 4_000_000  # pixels that need no room; a photo of this size takes 50 MB at most
_BYTES_A_PIXEL = 32  # that Pillow and the decoders take for the oddest formats, and then some
_BYTES_BESIDE = 1 << 30  # for the file itself
# Of the environment, what an interpreter may need to start and to decode names; no secrets.
_NEEDED = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")


class DiedError(Exception):
    """The process ended while it had a photo; `status` as subprocess says it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


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


class _Line:
    """Messages over a socket, each after its length, until a time that may be set."""

    def __init__(self, own: socket.socket) -> None:
        self.socket = own
        self._end: float | None = None

    def end_in(self, seconds: float) -> None:
        """Raise TimeoutError from what is not sent and received by then."""
        self._end = time.monotonic() + seconds

    def send(self, message: bytes) -> None:
        self._count_down()
        self.socket.sendall(len(message).to_bytes(8, "big"))
        self.socket.sendall(message)

    def receive(self, most: int) -> bytes:
        length = int.from_bytes(self._read(8), "big")
        if length > most:
            raise ValueError(f"{length} bytes, where {most} are the most")
        return self._read(length)

    def _read(self, count: int) -> bytes:
        data = io.BytesIO()
        while (left := count - data.tell()) > 0:
            self._count_down()
            if not (piece := self.socket.recv(min(left, _PIECE))):
                raise EOFError
            data.write(piece)
        return data.getvalue()

    def _count_down(self) -> None:
        if self._end is not None:
            if (left := self._end - time.monotonic()) <= 0:
                raise TimeoutError
            self.socket.settimeout(left)


class DecodeProcess:
    """A decoding process, as its parent sees it.

    Args:
        config: how a photo becomes a square.
        limits: what one photo may cost.
        environment: variables that it needs to read photos, beside those of any interpreter.

    Raises:
        CaptionerError: it cannot start; the detail has its last words.

    """

    def __init__(
        self, config: TransformConfig, limits: Limits, environment: Mapping[str, str]
    ) -> None:
        # Not multiprocessing's own processes: those import the caller's script again, and inherit
        # each other's sockets, so that they would outlive a parent that was killed.
        self._limits, self._square = limits, config.size**2
        try:
            paths = [os.fsdecode(path) or str(Path.cwd()) for path in sys.path]
            words = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
            ours, theirs = socket.socketpair()
        except OSError as error:  # no folder to write to, a folder that is gone, no descriptors
            raise CaptionerError(f"no decoding process can be started ({error})") from error
        self._line = _Line(ours)
        _running.add(self)
        environment = {
            **{name: os.environ[name] for name in _NEEDED if name in os.environ},
            **environment,
            "PYTHONPATH": os.pathsep.join(paths),
            "MALLOC_ARENA_MAX": "2",  # each arena of glibc reserves address space, which is bounded
        }
        code = f"from {__name__} import serve; serve({theirs.fileno()})"
        with words, theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    env=environment,
                )
            except OSError as error:
                ours.close()
                raise CaptionerError(f"no decoding process can be started ({error})") from error
            theirs.close()
            if not self._begins(config):
                status = self.end()
                words.seek(0)
                last = words.read().decode("utf-8", "replace").strip().splitlines()[-1:]
                reason = last[0] if last else f"status {status}"
                raise CaptionerError(f"a decoding process cannot start: {reason}")

    def _begins(self, config: TransformConfig) -> bool:
        with suppress(OSError, EOFError, ValueError):
            self._line.end_in(_START_SECONDS)
            self._line.send(pickle.dumps((config, self._limits)))
            return self._line.receive(len(_READY)) == _READY
        return False

    def decode(self, photo: Readable, longest: int | None, budget: Budget) -> Decoded:
        """Have a photo decoded; a large one waits until `budget` has room for its pixels.

        Raises:
            TimeoutError: the photo took too long; the process is ended.
            DiedError: the process ended, or answered what no such process answers.

        """
        try:
            self._line.end_in(self._limits.seconds)
            self._line.send(pickle.dumps((photo, longest)))
            answer = json.loads(self._line.receive(_HEAD))
            if type(answer) is int and answer >= 0:
                with budget.hold(answer):
                    self._line.end_in(self._limits.seconds)
                    self._line.send(b"")
                    return self._decoded(json.loads(self._line.receive(_HEAD)), longest)
            return self._decoded(answer, longest)
        except TimeoutError:
            self.kill()
            self.end()
            raise
        except (EOFError, OSError) as error:
            raise DiedError(self.end()) from error
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            self.kill()  # it is not what it was
            self.end()
            raise DiedError(1) from error

    def _decoded(self, head: object, longest: int | None) -> Decoded:
        decoded, count = Decoded.of_head(head)
        if count > 3 * (self._square if longest is None else self._limits.max_pixels):
            raise ValueError(f"{count} bytes of pixels")
        decoded = decoded._replace(pixels=self._line.receive(count))
        if len(decoded.pixels) < count:
            raise ValueError(f"{len(decoded.pixels)} of {count} bytes of pixels")
        return decoded

    def kill(self) -> None:
        """End it at once; it writes nothing, so nothing is left half done."""
        self._process.kill()

    def end(self) -> int:
        """Close the socket, at which the process ends, and say with which status."""
        self.forget()
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def forget(self) -> None:
        """Close the socket alone."""
        self._line.socket.close()


def _forget() -> None:
    for process in list(_running):
        process.forget()


# A fork has our sockets too: with them it would keep the processes alive when we are killed.
_running: weakref.WeakSet[DecodeProcess] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# What runs inside


def serve(descriptor: int) -> None:
    """Answer photo by photo until the other side closes."""
    # An interrupt from the keyboard reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Pillow warns of odd metadata in photos that it reads all the same.
    warnings.simplefilter("ignore")
    # Several processes decode already; each thread of a decoder would take address space.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    line = _Line(socket.socket(fileno=descriptor))
    with suppress(EOFError, ConnectionError):
        config, limits = pickle.loads(line.receive(sys.maxsize))
        line.send(_READY)
        _silence()
        _bound_memory(_BYTES_A_PIXEL * limits.max_pixels + _BYTES_BESIDE)
        if limits.nice:
            os.nice(limits.nice)
        _answer(line, config, limits)


def _answer(line: _Line, config: TransformConfig, limits: Limits) -> None:
    # Ends this process after a while, even inside a decoder; for when the parent cannot.
    most = math.ceil(limits.seconds) + 5

    def admit(pixels: int) -> None:
        if pixels > _UNASKED:
            signal.alarm(0)
            line.send(json.dumps(pixels).encode())
            line.receive(0)
            signal.alarm(most)

    while True:
        photo, longest = pickle.loads(line.receive(sys.maxsize))
        signal.alarm(most)
        answer = decode(photo, config, longest=longest, max_pixels=limits.max_pixels, admit=admit)
        signal.alarm(0)
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
