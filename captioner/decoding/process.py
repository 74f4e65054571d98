"""One worker process, as its parent sees it: started, asked, and ended when it takes too long."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from captioner.decoding.budget import PixelBudget
from captioner.decoding.decoder import Decoded, Readable
from captioner.decoding.worker import READY, Limits, serve
from captioner.errors import CaptionerError
from captioner.vision.transform import TransformConfig

__all__ = ["DecodeProcess", "DiedError", "SlowError"]

_START_SECONDS = 60.0
_HEAD = 1 << 20  # bytes of what is said beside the pixels: a detail may name a photo
# Of the environment, what an interpreter may need to start and to decode names; no secrets.
_NEEDED = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME")


class DiedError(Exception):
    """The process ended while it had a photo; `status` as subprocess says it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class SlowError(Exception):
    """The photo took more than its time; the process was ended."""


class DecodeProcess:
    """A worker process.

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
            said = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
            self._connection, theirs = multiprocessing.Pipe()
        except OSError as error:  # no folder to write to, a folder that is gone, no descriptors
            raise CaptionerError(f"no decoding process can be started ({error})") from error
        environment = {
            **{name: os.environ[name] for name in _NEEDED if name in os.environ},
            **environment,
            "PYTHONPATH": os.pathsep.join(paths),
            "MALLOC_ARENA_MAX": "2",  # each arena of glibc reserves address space, which is bounded
        }
        code = f"from {serve.__module__} import serve; serve({theirs.fileno()})"
        with said, theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
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
                return self._connection.recv_bytes(len(READY)) == READY
        return False

    def decode(self, photo: Readable, longest: int | None, budget: PixelBudget) -> Decoded:
        """Have a photo decoded; it waits in `budget` for room if it is large.

        Raises:
            DiedError: the process ended.
            SlowError: the photo took too long.

        """
        try:
            self._connection.send((photo, longest))
            said = self._said()
            if type(said) is int and said >= 0:
                with budget.hold(said):
                    self._connection.send(None)
                    said = self._said()
            decoded, count = Decoded.of_head(said)
            if count > 3 * (self._square if longest is None else self._limits.max_pixels):
                raise ValueError(f"{count} bytes of pixels")
            decoded = decoded._replace(pixels=self._receive(count))
            if len(decoded.pixels) < count:
                raise ValueError(f"{len(decoded.pixels)} of {count} bytes of pixels")
            return decoded
        except (EOFError, OSError) as error:
            raise DiedError(self.end()) from error
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            self.kill()  # it is not what it was
            self.end()
            raise DiedError(1) from error

    def _said(self) -> Any:
        return json.loads(self._receive(_HEAD))

    def _receive(self, most: int) -> bytes:
        if not self._connection.poll(self._limits.seconds):
            self.kill()
            self.end()
            raise SlowError
        return self._connection.recv_bytes(most)

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
