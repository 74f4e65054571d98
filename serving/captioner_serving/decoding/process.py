"""The parent side of a decoding process.

A photo may exploit a decoder, keep it busy for hours, or take all memory. So it is decoded in a
process with a deadline, a memory limit and almost no environment. Results are JSON and pixels,
whose lengths are checked; nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from captioner.errors import (
    CaptionerError,
    ImageError,
    ImageNotFoundError,
    ImageTimeoutError,
    ImageTruncatedError,
)
from captioner.shared.files import IS_WINDOWS
from captioner_serving.decoding import child
from captioner_serving.decoding.child import READY, Limits, Line
from captioner_serving.decoding.fair_queue import Budget
from captioner_serving.decoding.photo import Decoded, Output, Readable, Square

_START_SECONDS = 60.0
_POLL = 0.2  # seconds
_LARGEST_FILE = 1 << 26  # bytes of an encoded result
_HEAD = 1 << 20  # bytes of a result without its pixels
_SIGKILL = 9  # Windows has no such signal
# Exceptions that an invalid answer raises.
_INVALID = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
_KILLS = 3  # times that the system may kill the process of a photo before memory counts as short
# The environment variables that are passed on; no secrets.
_NEEDED = (
    *("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("PYTHONHOME", "SYSTEMROOT"),
)


class ProcessesKilledError(CaptionerError):
    """The system killed the decoding processes, probably because memory is short."""


class DecodeProcess:
    """Decodes photos one by one in a process, which is replaced when a photo crashes it.

    Several processes share the `budget` of pixels that may be decoded at once.
    """

    def __init__(self, limits: Limits, *, budget: Budget, environment: Mapping[str, str]) -> None:
        self._limits, self._budget, self._environment = limits, budget, environment
        self._running: tuple[subprocess.Popen[bytes], Line] | None = None
        self._closed = False
        _all.add(self)

    def start(self) -> None:
        """Start the process, unless it is running.

        If it cannot start, the error has the last line of its output.
        """
        if self._running is not None:
            return
        try:
            with tempfile.TemporaryFile() as words:
                _, line = self._running = self._popen(words.fileno())
                with suppress(OSError, EOFError, ValueError):
                    line.end_in(_START_SECONDS)
                    line.send(pickle.dumps(self._limits))
                    if line.receive(len(READY)) == READY:
                        return
                status = self.end()
                words.seek(0)
                last = words.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        except OSError as error:
            raise CaptionerError(f"no decoding process can be started ({error})") from error
        if self._closed:  # during the start
            raise closed_error()
        reason = last[0] if last else f"status {status}"
        raise CaptionerError(f"a decoding process cannot start: {reason}")

    def _popen(self, words: int) -> tuple[subprocess.Popen[bytes], Line]:
        # Not multiprocessing: its processes import the caller's script and inherit each other's
        # sockets, so they would outlive a killed parent.
        paths = [os.fsdecode(path) or str(Path.cwd()) for path in sys.path]
        environment = {
            **{name: os.environ[name] for name in _NEEDED if name in os.environ},
            **self._environment,
            "PYTHONPATH": os.pathsep.join(paths),
            "MALLOC_ARENA_MAX": "2",  # arenas of glibc reserve address space
        }
        if IS_WINDOWS:  # a child inherits no sockets
            return _start_with_token(environment, words)
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"from {child.__name__} import serve; serve({theirs.fileno()})"
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    env=environment,
                )
            except OSError:
                ours.close()
                raise
        return process, Line(ours)

    def decode(self, photo: Readable, outputs: Sequence[Output]) -> list[Decoded]:
        """Decode a photo; after a crash, try again in a new process. See `Reader.produce`.

        A photo that is too slow, or crashes two processes, gives results with an `error`.
        """

        def failed(error: CaptionerError) -> list[Decoded]:
            return [Decoded.failed(error)] * len(outputs)

        crashes = kills = 0
        while not self._closed:
            self.start()
            try:
                return self._ask([photo], outputs)
            except TimeoutError:
                self.end(kill=True)
                return failed(_too_slow(photo, self._limits.seconds))
            except (EOFError, OSError):
                status = self.end()
            except _INVALID:
                self.end(kill=True)  # the process may be compromised
                status = 1
            if self._closed:
                break
            if status != -_SIGKILL:
                crashes += 1
                if crashes > 1:
                    reason = f"{photo.name} crashed the image decoder (status {status})"
                    return failed(ImageTruncatedError(f"{reason}: copy or export it again"))
                continue
            kills += 1  # the system killed it, probably because memory is short
            if kills == _KILLS:
                raise ProcessesKilledError(
                    "the system kills the decoding processes, probably because memory is short: "
                    "use fewer workers, or a lower limit of pixels"
                )
            time.sleep(kills)
        raise closed_error()

    def decode_together(
        self, photos: Sequence[Readable], output: Output
    ) -> list[Decoded | CaptionerError]:
        """Decode several photos with one request, which takes less time than one for each.

        If the request fails, the photos are decoded one by one, so that only the faulty photo
        fails. The time limit is that of one photo, so a photo that exceeds it fails in any group.
        The last of the results may be a CaptionerError that `decode` raised.
        """
        if len(photos) > 1 and not self._closed:
            self.start()
            try:
                return [*self._ask(photos, [output])]
            except (EOFError, OSError, *_INVALID):
                self.end(kill=True)
        results: list[Decoded | CaptionerError] = []
        for photo in photos:
            try:
                results += self.decode(photo, [output])
            except CaptionerError as error:
                return [*results, error]
        return results

    def _ask(self, photos: Sequence[Readable], outputs: Sequence[Output]) -> list[Decoded]:
        """Send photos and receive the results: for each photo, one for each output.

        A large photo is decoded when the pixel budget, which several processes share, has room.
        """
        if self._running is None or self._closed:
            raise EOFError
        _, line = self._running
        most = _HEAD + len(photos) * sum(map(_most_bytes, outputs))
        line.end_in(self._limits.seconds)
        line.send(pickle.dumps((photos, outputs)))
        head, pixels = _split(line.receive(most))
        for _ in photos:
            if type(head) is not int or head < 0:
                break
            with self._budget.hold(head):
                line.end_in(self._limits.seconds)
                line.send(b"")
                head, pixels = _split(line.receive(most))
        return self._answers(head, pixels, [*outputs] * len(photos))

    def _answers(self, heads: Any, pixels: memoryview, outputs: Sequence[Output]) -> list[Decoded]:
        answers = []
        for head, output in zip(heads, outputs, strict=True):
            decoded, count = Decoded.of_head(head)
            width, height = decoded.shape
            is_sound = count <= min(_most_bytes(output), len(pixels))
            if not is_sound or (isinstance(output, Square) and count != 3 * width * height):
                raise ValueError(f"{count} bytes for {width} x {height} pixels")
            answers.append(decoded._replace(pixels=pixels[:count]))
            pixels = pixels[count:]
        if pixels:
            raise ValueError(f"{len(pixels)} more bytes than the heads say")
        return answers

    def close(self) -> None:
        """Kill the process; called from another thread. All photos fail from now on."""
        self._closed = True
        if (running := self._running) is not None:
            running[0].kill()

    def end(self, *, kill: bool = False) -> int:
        """Close the socket, which ends the process, and return its exit status."""
        if self._running is None:
            return 0
        self.forget()
        (process, _), self._running = self._running, None
        if kill:
            process.kill()
        try:
            return process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def forget(self) -> None:
        """Close the socket without waiting for the process."""
        if self._running is not None:
            self._running[1].socket.close()


def _start_with_token(
    environment: Mapping[str, str], words: int
) -> tuple[subprocess.Popen[bytes], Line]:
    """Start a process that connects to a local port and authenticates with a token."""
    token = secrets.token_bytes(32)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_POLL)
        code = f"from {child.__name__} import connect; connect({server.getsockname()[1]})"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=words,
            env=environment,
        )
        assert process.stdin is not None
        with suppress(OSError), process.stdin:  # it may have ended
            process.stdin.write(token)
        end = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < end:
            with suppress(OSError, EOFError, ValueError):
                ours, _ = server.accept()
                ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = Line(ours)
                line.end_in(_START_SECONDS)
                if secrets.compare_digest(line.receive(len(token)), token):
                    return process, line
                ours.close()
    closed, theirs = socket.socketpair()
    theirs.close()
    return process, Line(closed)  # a closed line: `start` reports the process's last output


def _most_bytes(output: Output) -> int:
    """Return the largest number of bytes of a result."""
    return 3 * output.config.size**2 if isinstance(output, Square) else _LARGEST_FILE


def _split(answer: memoryview) -> tuple[Any, memoryview]:
    """Split an answer into the value of its JSON and the pixels."""
    end = 8 + min(int.from_bytes(answer[:8], "big"), _HEAD)
    return json.loads(bytes(answer[8:end])), answer[end:]


def closed_error() -> CaptionerError:
    """Return the error of a closed reader."""
    return CaptionerError("the reader is closed: open a new one")


def _too_slow(photo: Readable, seconds: float) -> ImageError:
    late = f"{photo.name} takes more than {seconds:g} s to"
    if hasattr(photo, "url"):
        return ImageNotFoundError(f"{late} download and decode: try again later")
    return ImageTimeoutError(f"{late} decode: export it again, smaller")


def _forget() -> None:
    for process in list(_all):
        process.forget()


# A fork inherits our sockets, which would keep the processes alive after we are killed.
_all: weakref.WeakSet[DecodeProcess] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
