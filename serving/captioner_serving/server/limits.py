"""What a request's body may be: so large, so slow, and so many bytes of all of them at once.

A body is in memory from its first byte until its request is answered, so all bodies are counted
together. What a proxy does better it does: see docs/serving.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.errors import CaptionerError
from captioner_serving.server.batcher import BusyError
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.door import visit_of
from captioner_serving.server.forms import SLACK, too_large
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.problems import (
    MethodError,
    RequestError,
    RouteError,
    SlowUploadError,
    problem,
)

__all__ = ["Limits"]

_SLOWEST = 50_000  # bytes a second that a client must send when its patience is used up


@dataclass(eq=False)
class _Body:
    """A body on its way in."""

    started: float
    size: int = 0
    complete: bool = False


class Limits:
    """Lets requests pass for which there is a route, and room for their body."""

    def __init__(self, app: ASGIApp, config: ServerConfig, metrics: Metrics) -> None:
        self.app = app
        self._config = config
        self._bodies: set[_Body] = set()
        metrics.bodies.set_function(self._held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if (refusal := self._refusal(scope)) is not None:
            answer = problem(refusal)
            if isinstance(refusal, MethodError):
                answer.headers["Allow"] = visit_of(scope).method or ""
            if isinstance(refusal, RequestError):  # what follows may be no request
                answer.headers["Connection"] = "close"
            return await answer(scope, receive, send)
        body = _Body(started=asyncio.get_running_loop().time())

        async def bounded() -> Message:
            return await receive() if body.complete else await self._next(body, receive)

        self._bodies.add(body)
        try:
            return await self.app(scope, bounded, send)
        finally:
            self._bodies.discard(body)

    def _refusal(self, scope: Scope) -> CaptionerError | None:
        """What is wrong with a request as its head tells it."""
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        visit = visit_of(scope)
        if visit.route is None:
            return RouteError(
                "the page is at /, the API at /api/caption, its documentation at /docs"
            )
        if visit.method is not None and scope["method"] != visit.method:
            return MethodError(f"send a {visit.method} request: /docs says what it takes")
        if length and "transfer-encoding" in headers:
            # A proxy may have believed the other one: what follows is not what it took it for.
            return RequestError("the request tells its length in two ways")
        if length.isdigit() and int(length) > self._config.max_upload + SLACK:
            return too_large(self._config.max_upload)
        return None

    async def _next(self, body: _Body, receive: Receive) -> Message:
        """The next part of a body.

        Raises:
            SlowUploadError: it does not come in time.
            UploadTooLargeError: it is larger than it said, or than it may be.
            BusyError: there is no room for it.

        """
        patience = self._config.patience
        try:
            async with asyncio.timeout_at(body.started + patience + body.size / _SLOWEST):
                message = await receive()
        except TimeoutError as error:
            raise SlowUploadError(
                f"after {patience:g} s a body has to arrive at {_SLOWEST // 1000} kB/s or more: "
                "try again over a faster connection, or send a smaller photo"
            ) from error
        if message["type"] == "http.request":
            body.size += len(message.get("body", b""))
            body.complete = not message.get("more_body", False)
            if body.size > self._config.max_upload + SLACK:
                raise too_large(self._config.max_upload)
            if self._held() > self._config.max_bodies:
                self._bodies.discard(body)
                raise BusyError(5, "the uploads under way use all the memory set aside for them")
        return message

    def _held(self) -> int:
        return sum(body.size for body in self._bodies)
