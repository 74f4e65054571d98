"""Decoding in worker processes: photos in, squares out, in order, whatever a file does to a worker.

A decoder written in C can be brought down by a damaged file. Then one worker dies, its first photo
without an answer is to blame, and a new worker takes over the others.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from captioner.errors import CaptionerError, ImageTruncatedError
from captioner.geometry import TransformConfig
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.decoding.worker import Decoded

__all__ = ["DecodePool"]

_QUEUED = 2  # photos a worker has at once: one to work on, and the next without a pause


@dataclass(eq=False)
class _Task:
    photo: Photo
    result: Decoded | None = None


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    tasks: deque[_Task] = field(default_factory=deque)


class DecodePool:
    """Worker processes that decode; a context manager, so that none outlives its run.

    Args:
        transform: how a photo becomes a square.
        max_pixels: larger photos are refused.
        workers: processes.
        ahead: photos that may be decoded before they are asked for; bounds the memory.

    """

    def __init__(
        self, transform: TransformConfig, *, max_pixels: int, workers: int, ahead: int
    ) -> None:
        self._setup = (transform, max_pixels)
        self._ahead = max(ahead, workers * _QUEUED)
        self._workers = [self._start() for _ in range(workers)]

    def __enter__(self) -> DecodePool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.connection.close()  # a worker ends with its socket
        for worker in self._workers:
            try:
                worker.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def decode(self, photos: Iterator[Photo]) -> Iterator[tuple[Photo, Decoded]]:
        """Decode photos and give them back in their order; few are held at a time."""
        tasks: deque[_Task] = deque()
        more = True
        problem: Exception | None = None
        while True:
            while more and len(tasks) < self._ahead and (worker := self._idlest()):
                try:
                    photo = next(photos, None)
                except Exception as error:  # it comes after the photos before it
                    photo, problem = None, error
                if photo is None:
                    more = False
                    break
                tasks.append(task := _Task(photo))
                self._assign(worker, task)
            while tasks and (result := tasks[0].result) is not None:
                yield tasks.popleft().photo, result
            if tasks:
                self._receive(block=tasks[0].result is None)
            elif problem is not None:
                raise problem
            elif not more:
                return

    def _idlest(self) -> _Worker | None:
        worker = min(self._workers, key=lambda one: len(one.tasks))
        return worker if len(worker.tasks) < _QUEUED else None

    def _assign(self, worker: _Worker, task: _Task) -> None:
        worker.tasks.append(task)
        try:
            worker.connection.send(task.photo)
        except OSError:
            self._replace(worker)

    def _receive(self, *, block: bool) -> None:
        """Take the answers that are there; if need be, wait for one."""
        busy = {worker.connection: worker for worker in self._workers if worker.tasks}
        for connection in wait(list(busy), timeout=None if block else 0):
            worker = busy[connection]  # type: ignore[index]
            try:
                answer = worker.connection.recv()
            except (EOFError, OSError):
                self._replace(worker)
            else:
                worker.tasks.popleft().result = answer

    def _replace(self, worker: _Worker) -> None:
        """Blame the photo that a dead worker was at, and give the rest to a new one."""
        worker.connection.close()
        status = worker.process.wait()
        if status == 0 or not worker.tasks:
            raise CaptionerError(f"a decoding process ended by itself (status {status})")
        culprit, *rest = worker.tasks
        reason = f"{culprit.photo.name} brought the image decoder down (status {status})"
        error = ImageTruncatedError(f"{reason}: copy or export it again")
        culprit.result = Decoded(b"", (0, 0), b"", error.record())
        fresh = self._start()
        self._workers[self._workers.index(worker)] = fresh
        for task in rest:
            self._assign(fresh, task)

    def _start(self) -> _Worker:
        # Not multiprocessing's own processes: those import the caller's script again, and inherit
        # each other's sockets, so that they would outlive a parent that was killed.
        ours, theirs = multiprocessing.Pipe()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        }
        code = f"from {Decoded.__module__} import serve; serve({theirs.fileno()})"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # libtiff and libjpeg print what the errors say already
            env=environment,
        )
        theirs.close()
        ours.send(self._setup)
        return _Worker(process, ours)
