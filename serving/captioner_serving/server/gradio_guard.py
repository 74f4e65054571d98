"""Limits for gradio_client: its calls, its uploads on disk, and results that are not read.

Photos are uploaded to a folder through Gradio, and kept for ten minutes. A call may only name files
in this folder, because Gradio would also download URLs.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner_serving.server.body import boundary_of, parse_object
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.gradio_page import (
    ENDPOINT,
    drop_results,
    endpoint_of,
    has_pending_calls,
)
from captioner_serving.server.problems import BusyError, RefusedError
from captioner_serving.server.request import client_of, request_info

_MOST_HEARTBEATS = 16  # open streams of a client
_LONGEST_CALL = 16_000  # bytes; a call contains only numbers and paths
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
        self._blocks = blocks
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
            if not entry.readers and not has_pending_calls(self._blocks, session):
                self._drop(session)

    def drop_stale(self) -> None:
        """Drop the sessions that had no reader for a minute."""
        now = time.monotonic()
        for session, entry in list(self._sessions.items()):
            if not entry.readers and now - entry.touched > _UNREAD:
                self._drop(session)

    def _drop(self, session: str) -> None:
        self._sessions.pop(session, None)
        drop_results(self._blocks, session)


class GradioGuard:
    """Middleware for Gradio: allows only small calls of the endpoint, and uploaded files.

    Args:
        app: the application of Gradio.
        uploads: the uploads of gradio_client.
        blocks: the page, with the endpoint.
        config: the limits.
    """

    def __init__(
        self, app: ASGIApp, uploads: Uploads, blocks: gr.Blocks, config: ServerConfig
    ) -> None:
        self.app = app
        self._uploads, self._root_path = uploads, config.root_path
        self._heartbeats = Counter[str]()  # open streams by client
        self._results = Results(blocks, limit=4 * config.queue)
        self._function, self._values = endpoint_of(blocks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request and pass it on.

        Raises CaptionerError: gradio_client does not make such a call, or a limit is reached.
        """
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        # Without Origin, because Gradio would allow any origin to read the answer.
        headers = [header for header in scope["headers"] if header[0] != b"origin"]
        scope = {**scope, "headers": headers}
        route, client = request_info(scope).route, client_of(scope)
        if route == "/" and Request(scope).query_params.get("view") == "api":
            return await RedirectResponse(f"{self._root_path}/docs")(scope, receive, send)
        if scope["method"] == "POST" and route == "/gradio_api/upload":
            return await self.app(scope, self._counted(receive, scope, client), send)
        if scope["method"] == "POST":
            call, receive = await self._checked(Request(scope, receive))
            session = call.get("session_hash")
            if request_info(scope).path.rstrip("/").endswith("/queue/join"):
                if not isinstance(session, str):
                    raise RefusedError("bad-request", "session_hash is missing: use gradio_client")
                self._results.admit(session, client)
        elif route == "/gradio_api/heartbeat":
            if self._heartbeats[client] >= _MOST_HEARTBEATS:
                raise BusyError(5, "too many streams are open")
            self._heartbeats[client] += 1
            try:
                return await self.app(scope, receive, send)
            finally:
                self._heartbeats -= Counter([client])
        elif route == "/gradio_api/queue":
            with self._results.reading(Request(scope).query_params.get("session_hash", "")):
                return await self.app(scope, receive, send)
        return await self.app(scope, receive, send)

    async def watch(self) -> None:
        """Delete old uploads and drop unread results, until cancelled."""
        while True:
            await asyncio.sleep(self._uploads.interval)
            self._results.drop_stale()
            await run_in_threadpool(self._uploads.sweep)

    def _counted(self, receive: Receive, scope: Scope, client: str) -> Receive:
        length = Headers(scope=scope).get("content-length", "")
        mark = b"--" + boundary_of(Headers(scope=scope).get("content-type", "")).encode("latin-1")
        upload = self._uploads.begin(client, int(length) if length.isdecimal() else 0)
        size = marks = 0
        rest = b""  # the end of the last chunk, where a boundary may begin

        async def counted() -> Message:
            nonlocal size, marks, rest
            message = await receive()
            chunk = message.get("body", b"")
            size += len(chunk)
            marks += (rest + chunk).count(mark)
            rest = (rest + chunk)[1 - len(mark) :]
            if marks > 2:  # before and after one file
                raise RefusedError("upload-too-large", "upload one file per request")
            self._uploads.grow(upload, size)
            return message

        return counted

    async def _checked(self, request: Request) -> tuple[dict[str, Any], Receive]:
        """Read and check a call; return it, and a `receive` that replays it."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_CALL:
                raise RefusedError(
                    "upload-too-large", f"the limit of a call is {_LONGEST_CALL:,} bytes"
                )
        call = parse_object(bytes(body))
        self._check(call)
        checked = json.dumps(call).encode()
        first: Message = {"type": "http.request", "body": checked, "more_body": False}
        pending = [first]

        async def again() -> Message:
            return pending.pop() if pending else await request.receive()

        return call, again

    def _check(self, call: dict[str, Any]) -> None:
        data = call.get("data", [])
        if not isinstance(data, list) or (data and not isinstance(data[0], dict | None)):
            raise RefusedError("bad-request", "the first value must be a file: use handle_file")
        if not all(map(self._uploads.owns, _paths(call))):
            raise RefusedError(
                "forbidden", "the call names a file that was not uploaded: use handle_file"
            )
        # Gradio would log a traceback for other calls.
        if "data" in call and (call.get("fn_index"), len(data)) != (self._function, self._values):
            detail = (
                f"only /{ENDPOINT} can be called, with {self._values} values: use gradio_client"
            )
            raise RefusedError("bad-request", detail)


def _paths(value: object) -> Iterator[object]:
    """Yield the paths of all files in a value, at any depth."""
    if isinstance(value, dict):
        yield from [value["path"]] if "path" in value else []
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _paths(part)
