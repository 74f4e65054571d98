"""What is let in: known routes with their methods, and no more of what takes room than fits.

A body is in memory from its first byte until its request is answered. So all bodies are counted
together, one that comes too slowly is given up, and when there is no room for a new one, the upload
that has been silent longest makes way. An answer is in memory until its client has taken it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.errors import CaptionerError
from captioner_serving.server.addresses import client_of
from captioner_serving.server.batcher import BusyError
from captioner_serving.server.config import SLOWEST, ServerConfig
from captioner_serving.server.connections import FULL
from captioner_serving.server.forms import SLACK, too_large
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.problems import MethodError, RouteError, SlowUploadError, problem
from captioner_serving.server.routes import find_route, visit_of

__all__ = ["Admission"]

_SILENT = 1.0  # seconds after which an upload may have to make way for another
# Pictures wanted and not yet taken, of all clients and of one; each has up to 10 MB.
_PICTURES, _PICTURES_EACH = 44, 16
_PIECE = 65_536  # bytes of an answer; uvicorn waits between two until the first is nearly taken


@dataclass(eq=False)
class _Body:
    """One body on its way in."""

    started: float
    last: float
    size: int = 0
    complete: bool = False
    displaced: bool = False
    timer: asyncio.Timeout | None = field(default=None, repr=False)


class _Places:
    """How many clients may be at something at once.

    Args:
        most: of all clients.
        each: of one.
        full: what to say when there are no more.

    There is half as much again for clients that are at nothing of the kind, so that a few others
    cannot take all there is.
    """

    def __init__(self, most: int, each: int, full: str) -> None:
        self._most, self._each, self._full = most, each, full
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> None:
        """Take a place for a client, who must `leave` it.

        Raises:
            BusyError: there is none.

        """
        first = self._taken[client] == 0
        most = self._most + first * (self._most // 2)
        if self._taken.total() >= most or self._taken[client] >= self._each:
            raise BusyError(5, f"{self._full}: try again in a moment")
        self._taken[client] += 1

    def leave(self, client: str) -> None:
        """Give a client's place back."""
        self._taken -= Counter([client])  # forgets who has none


class Admission:
    """Lets requests pass for which there is a route and room."""

    def __init__(self, app: ASGIApp, config: ServerConfig, metrics: Metrics) -> None:
        self.app = app
        self._config = config
        self._bodies: set[_Body] = set()
        most = max(2, config.max_connections // 2)
        self._streams = _Places(most, max(2, most // 2), "too many pages are open")
        self._pictures = _Places(
            _PICTURES, _PICTURES_EACH, "too many pictures are asked for at once"
        )
        metrics.bodies.set_function(self._held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        visit = visit_of(scope)
        if FULL in scope.get("state", ()):
            refusal = problem(BusyError(5, "too many connections are open: try again in a moment"))
            refusal.headers["Connection"] = "close"
            return await refusal(scope, receive, send)
        if visit.route is None:
            missing = RouteError(_suggestion(visit.path))
            return await problem(missing)(scope, receive, send)
        if scope["method"] not in visit.route.methods:
            wrong = MethodError(f"{scope['method'][:10]} does nothing here: {visit.route.hint}")
            refusal = problem(wrong)
            refusal.headers["Allow"] = ", ".join(visit.route.methods)
            return await refusal(scope, receive, send)
        if scope["method"] == "HEAD":  # FastAPI's routes know only GET; uvicorn drops the body
            scope = {**scope, "method": "GET"}
        send = _in_pieces(send)
        if visit.route.stream:
            return await self._counted(self._streams, scope, receive, send)
        if visit.route.picture and scope["method"] == "GET":
            return await self._counted(self._pictures, scope, receive, send)
        if "POST" in visit.route.methods:
            return await self._upload(scope, receive, send)
        return await self.app(scope, receive, send)

    async def _counted(self, places: _Places, scope: Scope, receive: Receive, send: Send) -> None:
        client = client_of(scope)
        try:
            places.take(client)
        except BusyError as full:
            return await problem(full)(scope, receive, send)
        try:
            return await self.app(scope, receive, send)
        finally:
            places.leave(client)

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = Headers(scope=scope).get("content-length", "")
        if length.isdigit() and int(length) > self._config.max_upload + SLACK:
            return await problem(too_large(self._config.max_upload))(scope, receive, send)
        now = asyncio.get_running_loop().time()
        body = _Body(started=now, last=now)

        async def counted() -> Message:
            return await receive() if body.complete else await self._next(body, receive)

        self._bodies.add(body)
        try:
            return await self.app(scope, counted, send)
        finally:
            self._bodies.discard(body)

    async def _next(self, body: _Body, receive: Receive) -> Message:
        """The next part of a body.

        Raises:
            SlowUploadError: it does not come in time.
            BusyError: there is no room for it.

        """
        due = body.started + self._config.patience + body.size / SLOWEST
        try:
            async with asyncio.timeout_at(due) as body.timer:
                message = await receive()
        except TimeoutError as error:
            raise self._given_up(body) from error
        finally:
            body.timer = None
        if body.displaced:
            raise self._given_up(body)
        if message["type"] == "http.request":
            body.last = asyncio.get_running_loop().time()
            body.size += len(message.get("body", b""))
            body.complete = not message.get("more_body", False)
            if body.size > self._config.max_upload + SLACK:
                raise too_large(self._config.max_upload)
            self._make_room(body)
        return message

    def _make_room(self, body: _Body) -> None:
        """Displace the uploads that have been silent longest until this one has room.

        Raises:
            BusyError: the others are complete, or on their way.

        """
        while self._held() > self._config.max_bodies:
            silent = [one for one in self._bodies if not one.complete and one is not body]
            oldest = min(silent, key=lambda one: one.last, default=None)
            if oldest is None or oldest.last > body.last - _SILENT:
                body.displaced = True
                self._bodies.discard(body)
                raise self._given_up(body)
            oldest.displaced = True
            self._bodies.discard(oldest)
            if oldest.timer is not None:
                oldest.timer.reschedule(body.last)

    def _held(self) -> int:
        return sum(body.size for body in self._bodies)

    def _given_up(self, body: _Body) -> CaptionerError:
        if body.displaced:
            return BusyError(5, "the uploads under way use all the memory set aside for them")
        return SlowUploadError(
            f"after {self._config.patience:g} s a body has to arrive at {SLOWEST // 1000} kB/s or "
            "more: try again over a faster connection, or send a smaller photo"
        )


def _in_pieces(send: Send) -> Send:
    """Send a large answer bit by bit, so that whoever made it waits until it is taken."""

    async def piecewise(message: Message) -> None:
        body = message.get("body", b"")
        last = max(0, len(body) - 1) // _PIECE * _PIECE  # where the last piece begins
        for start in range(0, last, _PIECE):
            piece = body[start : start + _PIECE]
            await send({**message, "body": piece, "more_body": True})
        await send({**message, "body": body[last:]} if body else message)

    return piecewise


def _suggestion(path: str) -> str:
    """What a client may have meant."""
    without = path.rstrip("/")
    if without != path and find_route(without) is not None:
        return f"the path is {without}, without a slash at its end"
    return "the page is at /, the API at /api/caption, its documentation at /docs"
