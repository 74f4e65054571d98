"""Count and log each request, and answer unhandled exceptions with a problem document."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.errors import CaptionerError
from captioner.terminal import in_a_line
from captioner_serving.memory import is_out_of_memory
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.problems import (
    PROBLEM_TYPE,
    PROBLEMS,
    ClosedError,
    MemoryShortError,
    internal_error,
    problem,
)
from captioner_serving.server.request import request_info

_GONE, _ = PROBLEMS["client-gone"]
_LOGGER = logging.getLogger("captioner.server")


class AccessLog:
    """Middleware that counts and logs a request when its answer is complete.

    Query strings, photo names and tokens are not logged.

    Args:
        app: the next application.
        metrics: counts requests.
        stream: the access log, with a line of JSON for each request; None: no log.
        say: called with a message for each failure.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, stream: TextIO | None, say: Callable[[str], None]
    ) -> None:
        self.app = app
        self._metrics = metrics
        self._stream = stream
        self._say = say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log its answer."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start = time.perf_counter()
        failure: CaptionerError = internal_error()
        protocol = request_info(scope).protocol
        answer = _Answer(send, PROBLEM_TYPE if protocol is None else "application/json")
        try:
            await self.app(scope, receive, answer)
        except ClientDisconnect:  # not an error of the server
            answer.status, answer.failed = _GONE, False
        except asyncio.CancelledError:  # the server is stopping
            if not answer.started:
                await problem(ClosedError())(scope, receive, answer)
            raise
        except Exception as error:
            answer.failed = True
            if is_out_of_memory(error):
                failure = MemoryShortError()
            else:
                _LOGGER.exception("%s failed", _one_line(request_info(scope).shown_path))
        if answer.failed and not answer.started:
            await problem(failure)(scope, receive, answer)
        return self._record(scope, answer, time.perf_counter() - start)

    def _record(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        info = request_info(scope)
        name = info.route or "other"
        self._metrics.requests.labels(name, answer.status).inc()
        self._metrics.latency.labels(name).observe(seconds)
        client = (scope.get("client") or ("",))[0]
        if answer.status >= 400 and not info.is_reported:
            path = _one_line(info.shown_path)
            self._say(f"{client} {scope['method'][:10]} {path}: {answer.status}")
        if self._stream is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": info.id,
            "client": client,
            "user": info.user,
            "method": scope["method"],
            "path": info.shown_path,
            "status": answer.status,
            "ms": round(1000 * seconds, 1),
            "bytes": answer.size,
        }
        with suppress(OSError):  # a full disk must not fail requests
            print(json.dumps(line), file=self._stream, flush=True)


def _one_line(path: str) -> str:
    """Return a path from a client, escaped and shortened for a log."""
    return in_a_line(path[:200])


class _Answer:
    """Forwards an answer and records its status; holds back a 500 without a problem document."""

    def __init__(self, send: Send, error_type: str) -> None:
        self._send, self._error_type = send, error_type
        self.status, self.size = _GONE, 0
        self.started, self.failed = False, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self.started:
            kind = Headers(raw=message.get("headers", [])).get("content-type", "")
            self.failed = message["status"] >= 500 and not kind.startswith(self._error_type)
            if not self.failed:
                self.started, self.status = True, message["status"]
        elif message["type"] == "http.response.body" and self.started:
            self.size += len(message.get("body", b""))
        if self.started:
            await self._send(message)
