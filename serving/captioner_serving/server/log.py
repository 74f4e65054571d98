"""The access log, a JSON object a line, and the counting of requests."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner_serving.server.metrics import Metrics

__all__ = ["AccessLog"]

_CLIENT_GONE = 499  # nginx's: no answer was sent, for nobody was there to read it


class AccessLog:
    """Writes a line and counts a request when its answer is complete.

    Neither queries nor the names of photos are written, nor what opens a photo to its reader.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, stream: TextIO | None) -> None:
        self.app = app
        self._metrics = metrics
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note its answer."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start = time.perf_counter()
        status, size = _CLIENT_GONE, 0

        async def watch(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except Exception:
            status = 500
            raise
        finally:
            self._record(scope, status, size, time.perf_counter() - start)

    def _record(self, scope: Scope, status: int, size: int, seconds: float) -> None:
        path = _without_secrets(scope["path"])
        route = _route(path)
        self._metrics.requests.labels(route, status).inc()
        self._metrics.latency.labels(route).observe(seconds)
        if self._stream is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": (scope.get("client") or ("",))[0],
            "user": scope.get("user"),
            "method": scope["method"],
            "path": path,
            "status": status,
            "ms": round(1000 * seconds, 1),
            "bytes": size,
        }
        print(json.dumps(line), file=self._stream, flush=True)


def _without_secrets(path: str) -> str:
    """Leave out of a path the parts that give access to somebody's photo."""
    path = re.sub(r"^(/gradio_api/file=).*", r"\1...", path)
    path = re.sub(r"^(/gradio_api/heartbeat/).*", r"\1...", path)
    return re.sub(r"^(/page/captions/)[^/]*", r"\1...", path)


def _route(path: str) -> str:
    """One of a few names, so that no client can make the metrics grow."""
    if path in ("/api/caption", "/api/health", "/metrics", "/docs"):
        return path
    if path.startswith("/gradio_api/"):
        return "/gradio_api"
    if path.startswith("/page/captions/"):
        return "/page/captions"
    return "/"
