"""One worker process, as its parent sees it: started, asked, and ended when it takes too long."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from captioner.errors import CaptionerError
from captioner.geometry import TransformConfig
from captioner_serving.decoding.budget import PixelBudget
from captioner_serving.decoding.decoder import Decoded, Readable
from captioner_serving.decoding.worker import READY, Limits, serve

__all__ = ["DecodeProcess", "DiedError", "SlowError"]

_START_SECONDS = 60.0


class DiedError(Exception):
    """The process ended while it had a photo; `status` as subprocess says it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class SlowError(Exception):
    """The photo took more than its time; the process was ended."""


class DecodeProcess:
    """A worker process.

    Raises:
        CaptionerError: it cannot start; the detail has its last words.

    """

    def __init__(self, config: TransformConfig, limits: Limits) -> None:
        # Not multiprocessing's own processes: those import the caller's script again, and inherit
        # each other's sockets, so that they would outlive a parent that was killed.
        self._limits = limits
        self._connection, theirs = multiprocessing.Pipe()
        paths = (path or str(Path.cwd()) for path in sys.path)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "MALLOC_ARENA_MAX": "2",  # each arena of glibc reserves address space, which is bounded
        }
        code = f"from {serve.__module__} import serve; serve({theirs.fileno()})"
        with tempfile.TemporaryFile() as said, theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stderr=said,
                    env=environment,
                )
            except OSError as error:
                self._connection.close()
                raise CaptionerError(f"no decoding process can be started ({error})") from error
            theirs.close()
            if not self._begins(config):
                self.end()
                said.seek(0)
                last = said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
                reason = last[0] if last else f"status {self._process.returncode}"
                raise CaptionerError(f"a decoding process cannot start: {reason}")

    def _begins(self, config: TransformConfig) -> bool:
        with suppress(OSError, EOFError):
            self._connection.send((config, self._limits))
            if self._connection.poll(_START_SECONDS):
                return bool(self._connection.recv() == READY)
        return False

    def decode(self, photo: Readable, longest: int | None, budget: PixelBudget) -> Decoded:
        """Have a photo decoded; it waits in `budget` for room if it is large.

        Raises:
            DiedError: the process ended.
            SlowError: the photo took too long.

        """
        try:
            self._connection.send((photo, longest))
            answer = self._receive()
            if isinstance(answer, int):
                with budget.hold(answer):
                    self._connection.send(None)
                    answer = self._receive()
        except (EOFError, OSError) as error:
            raise DiedError(self.end()) from error
        return answer  # type: ignore[return-value]

    def _receive(self) -> Decoded | int:
        if not self._connection.poll(self._limits.seconds):
            self.kill()
            self.end()
            raise SlowError
        answer: Decoded | int = self._connection.recv()
        return answer

    def kill(self) -> None:
        """End it at once; it writes nothing, so nothing is left half done."""
        self._process.kill()

    def end(self) -> int:
        """Close the socket, at which the process ends, and say with which status."""
        self._connection.close()
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
