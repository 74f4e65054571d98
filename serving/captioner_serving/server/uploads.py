"""Limits for gradio_client: uploads on disk and results that are not read."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from captioner_serving.server.problems import BusyError, RefusedError

_SWEEP = 30.0  # seconds between sweeps of old uploads
_LEAST = 16_384  # bytes; smaller uploads count as much, which limits the number of uploads
_UNREAD = 60.0  # seconds after which a result without a reader is dropped


@dataclass(eq=False)
class _Upload:
    client: str
    size: int
    written: float


class Uploads:
    """The folder of Gradio's uploads, with a limit of bytes.

    Args:
        folder: the folder.
        capacity: the limit of bytes of all uploads; one client may use half.
        ttl: seconds that an upload is kept.
    """

    def __init__(self, folder: Path, *, capacity: int, ttl: float) -> None:
        self.folder = folder.resolve()
        self._capacity, self._ttl = capacity, ttl
        self.interval = min(_SWEEP, ttl)  # seconds between sweeps
        self._uploads: set[_Upload] = set()

    def begin(self, client: str, size: int) -> _Upload:
        """Start to count an upload with an announced number of bytes.

        Raises BusyError: there is not enough space; nothing is written.
        """
        upload = _Upload(client, max(size, _LEAST), time.monotonic())
        self._uploads.add(upload)
        try:
            self._check(upload)
        except BusyError:
            self._uploads.discard(upload)
            raise
        return upload

    def grow(self, upload: _Upload, size: int) -> None:
        """Update the number of received bytes of an upload.

        Raises BusyError: there is not enough space. A sweep deletes the partial file.
        """
        upload.size, upload.written = max(size, upload.size), time.monotonic()
        self._check(upload)

    def _check(self, upload: _Upload) -> None:
        sizes = Counter[str]()
        for counted in self._uploads:
            sizes[counted.client] += counted.size
        limit = max(self._capacity // 2, upload.size)
        if sizes.total() > self._capacity or sizes[upload.client] > limit:
            raise BusyError(60, "recent uploads fill the space for uploads")

    def owns(self, path: object) -> bool:
        """Return whether a value is the path of a file in the folder."""
        try:
            return isinstance(path, str) and Path(path).resolve().is_relative_to(self.folder)
        except (OSError, ValueError):  # an invalid path
            return False

    def sweep(self) -> None:
        """Delete old files and empty folders; Gradio leaves those of aborted uploads."""
        oldest, now = time.time() - self._ttl, time.monotonic()
        for folder, _, names in os.walk(self.folder, topdown=False):
            is_old = os.lstat(folder).st_ctime < oldest
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):  # already deleted
                    if path.lstat().st_ctime < oldest:
                        path.unlink()
            if is_old and Path(folder) != self.folder:
                with suppress(OSError):  # not empty
                    Path(folder).rmdir()
        self._uploads = {
            upload for upload in self._uploads if now - upload.written < self._ttl + self.interval
        }


@dataclass(eq=False)
class _Session:
    client: str
    touched: float
    readers: int = 0


class Results:
    """The sessions of Gradio's queue with calls or results, limited in number and time.

    Args:
        blocks: the Gradio application.
        limit: the number of sessions without a reader; one client may have a quarter.
    """

    def __init__(self, blocks: gr.Blocks, *, limit: int) -> None:
        self._queue = blocks._queue
        self._limit = limit
        self._sessions: dict[str, _Session] = {}

    def admit(self, session: str, client: str) -> None:
        """Admit a call of a client in a session.

        Raises BusyError: too many sessions have unread results.
        """
        self.drop_stale()
        if (existing := self._sessions.get(session)) is not None:
            existing.touched = time.monotonic()
            return
        unread = Counter(entry.client for entry in self._sessions.values() if not entry.readers)
        if unread.total() >= self._limit or unread[client] >= max(1, self._limit // 4):
            raise BusyError(round(_UNREAD), "too many results are unread")
        self._sessions[session] = _Session(client, time.monotonic())

    @contextmanager
    def reading(self, session: str) -> Iterator[None]:
        """Keep a session during the block, which reads its results.

        Raises RefusedError: there is no such session.
        """
        entry = self._sessions.get(session)
        if entry is None:
            raise RefusedError(
                "no-such-session",
                "the results of this session were already read or have expired: call again",
            )
        entry.readers += 1
        try:
            yield
        finally:
            entry.readers -= 1
            entry.touched = time.monotonic()
            if not entry.readers and not self._queue.pending_event_ids_session.get(session):
                self._drop(session)

    def drop_stale(self) -> None:
        """Drop the sessions that had no reader for a minute."""
        now = time.monotonic()
        for session, entry in list(self._sessions.items()):
            if not entry.readers and now - entry.touched > _UNREAD:
                self._drop(session)

    def _drop(self, session: str) -> None:
        self._sessions.pop(session, None)
        events = self._queue.pending_event_ids_session.pop(session, set())
        for queue in self._queue.event_queue_per_concurrency_id.values():
            queue.queue[:] = [event for event in queue.queue if event._id not in events]
        for identifier in events:
            event = self._queue.event_ids_to_events.pop(identifier, None)
            if event is not None:
                event.alive = False  # stops its messages
        self._queue.pending_messages_per_session.pop(session, None)
