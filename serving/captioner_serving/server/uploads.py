"""Limits of what gradio_client leaves behind: uploads on disk and results that nobody reads."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import gradio as gr

from captioner_serving.server.problems import BusyError, RefusedError

__all__ = ["Results", "Uploads"]

_SWEEP = 30.0  # seconds between two sweeps of old uploads, at most
_LEAST = 16_384  # bytes that an upload counts at least, so that their number is limited too
_UNREAD = 60.0  # seconds after which a result without a reader is dropped


@dataclass(eq=False)
class _Upload:
    client: str
    size: int = _LEAST
    written: float = field(default_factory=time.monotonic)


class Uploads:
    """The folder of Gradio's uploads, limited in bytes.

    Args:
        folder: where Gradio writes uploads.
        capacity: bytes of all uploads in it. One client may have half of them.
        ttl: seconds that an upload is kept.
    """

    def __init__(self, folder: Path, *, capacity: int, ttl: float) -> None:
        self.folder = folder.resolve()
        self._capacity, self._ttl = capacity, ttl
        self.interval = min(_SWEEP, ttl)  # seconds between two sweeps
        self._uploads: set[_Upload] = set()

    def begin(self, client: str, size: int) -> _Upload:
        """Start to count an upload of a client that announces so many bytes.

        Raises BusyError: there is no room for it; nothing is written.
        """
        upload = _Upload(client, max(size, _LEAST))
        self._uploads.add(upload)
        try:
            self._check(upload)
        except BusyError:
            self._uploads.discard(upload)
            raise
        return upload

    def grow(self, upload: _Upload, size: int) -> None:
        """Count the upload's bytes, of which so many have come.

        Raises BusyError: there is no room for them. What was written is deleted by a sweep.
        """
        upload.size, upload.written = max(size, upload.size), time.monotonic()
        self._check(upload)

    def _check(self, upload: _Upload) -> None:
        total = sum(other.size for other in self._uploads)
        own = sum(other.size for other in self._uploads if other.client == upload.client)
        if total > self._capacity or own > max(self._capacity // 2, upload.size):
            raise BusyError(60, "the uploads of the last minutes fill the space set aside for them")

    def owns(self, path: object) -> bool:
        """Return whether a value is the path of a file in the folder."""
        try:
            return isinstance(path, str) and Path(path).resolve().is_relative_to(self.folder)
        except (OSError, ValueError):  # no path of any system
            return False

    def sweep(self) -> None:
        """Delete old files, those of broken uploads too, which Gradio forgets."""
        oldest, now = time.time() - self._ttl, time.monotonic()
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                with suppress(OSError):  # Gradio or another sweep was faster
                    if path.lstat().st_ctime < oldest:
                        path.unlink()
        self._uploads = {
            upload for upload in self._uploads if now - upload.written < self._ttl + self.interval
        }


@dataclass(eq=False)
class _Session:
    client: str
    readers: int = 0
    touched: float = field(default_factory=time.monotonic)


class Results:
    """The sessions of Gradio's queue that hold calls or results, limited in number and time.

    Args:
        blocks: the Gradio application.
        limit: sessions without a reader; one client may have a quarter of them.
    """

    def __init__(self, blocks: gr.Blocks, *, limit: int) -> None:
        self._queue = blocks._queue
        self._limit = limit
        self._sessions: dict[str, _Session] = {}

    def admit(self, session: str, client: str) -> None:
        """Let a client call in a session.

        Raises BusyError: too many sessions wait to be read.
        """
        self.drop_stale()
        if (known := self._sessions.get(session)) is not None:
            known.touched = time.monotonic()
            return
        unread = Counter(one.client for one in self._sessions.values() if not one.readers)
        if unread.total() >= self._limit or unread[client] >= max(1, self._limit // 4):
            raise BusyError(round(_UNREAD), "too many results wait to be read")
        self._sessions[session] = _Session(client)

    @contextmanager
    def reading(self, session: str) -> Iterator[None]:
        """Keep a session for as long as the block runs, in which its results are read.

        Raises RefusedError: there is no such session.
        """
        known = self._sessions.get(session)
        if known is None:
            raise RefusedError("no-such-session", "its results were read or dropped: call again")
        known.readers += 1
        try:
            yield
        finally:
            known.readers -= 1
            known.touched = time.monotonic()
            if not known.readers and not self._queue.pending_event_ids_session.get(session):
                self._drop(session)

    def drop_stale(self) -> None:
        """Drop the sessions that had no reader for a minute."""
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if not session.readers and now - session.touched > _UNREAD:
                self._drop(name)

    def _drop(self, session: str) -> None:
        self._sessions.pop(session, None)
        events = self._queue.pending_event_ids_session.pop(session, set())
        for queue in self._queue.event_queue_per_concurrency_id.values():
            queue.queue[:] = [event for event in queue.queue if event._id not in events]
        for identifier in events:
            event = self._queue.event_ids_to_events.pop(identifier, None)
            if event is not None:
                event.alive = False  # sends no more messages
        self._queue.pending_messages_per_session.pop(session, None)
