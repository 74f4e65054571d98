"""Between the world and Gradio: only files of one's own, and only calls that the page makes.

Which of Gradio's routes there are at all is in routes.py. A call that names a file has to name one
that this server stored for the same session (see store.py).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import gradio as gr
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner_serving.server.calls import MAX_CALL, CallFile, read_call
from captioner_serving.server.cookies import COOKIE
from captioner_serving.server.problems import (
    ForbiddenError,
    RequestError,
    RouteError,
    UploadTooLargeError,
)
from captioner_serving.server.routes import visit_of
from captioner_serving.server.store import UploadStore
from captioner_serving.server.unread import UnreadResults

__all__ = ["GradioGuard"]

_LOGGER = logging.getLogger("captioner.server")


class GradioGuard:
    """Wraps Gradio's part of the application.

    Args:
        app: what serves Gradio's routes.
        store: knows whose file is whose.
        functions: what each of the page's functions takes, by its number.
        unread: the results that have not been fetched.

    """

    def __init__(
        self,
        app: ASGIApp,
        store: UploadStore,
        functions: Mapping[int, Sequence[object]],
        unread: UnreadResults,
    ) -> None:
        self.app = app
        self._store = store
        self._functions = functions
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what the page needs.

        Raises:
            CaptionerError: a call that it does not; the application answers.

        """
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request = Request(scope, receive)
        # Gradio would tell any origin that it may read the answer.
        scope["headers"] = [header for header in scope["headers"] if header[0] != b"origin"]
        if request.method == "POST":
            return await self.app(scope, await self._checked(request), send)
        route = visit_of(scope).route
        if route is not None and route.stream:
            return await self._stream(request, send)
        return await self.app(scope, receive, _with_cookie(request, send))

    async def _stream(self, request: Request, send: Send) -> None:
        """Pass on what a client hears of its calls.

        What goes wrong meanwhile Gradio tells the client, and then fails: a line of the log.
        """
        session = request.query_params.get("session_hash")
        if session is not None and not self._unread.knows(session):
            raise RouteError("this session has no results: it made no call, or they were given up")
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(request.scope, request.receive, noted)
        except Exception as error:
            if not started:
                raise
            _LOGGER.error("a stream of results ended with %r", error)
            await send({"type": "http.response.body", "body": b""})

    async def _checked(self, request: Request) -> Receive:
        """Read a call, and give the application what has been checked, then what comes after it."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_CALL:
                raise UploadTooLargeError(
                    f"a call of the page has at most {MAX_CALL:,} bytes: upload photos first"
                )
        call = read_call(bytes(body))
        if call.fn_index is not None:
            if call.fn_index not in self._functions:
                raise RequestError(f"the page has no function {call.fn_index}: load it again")
            inputs = self._functions[call.fn_index]
            # Gradio itself refuses calls from before a function took one more.
            call.data += [getattr(part, "value", None) for part in inputs[len(call.data) :]]
            for part, value in zip(inputs, call.data, strict=False):
                if isinstance(part, gr.Image) and not isinstance(value, CallFile | None):
                    raise RequestError(f"{part.label} is a file: upload it first")
        if call.fn_index is not None:  # what ends a call has no result
            self._unread.make_room(call.session_hash)
        for file in call.files():
            if not self._store.claim(file.path, call.session_hash):
                raise ForbiddenError(
                    "the call names a file that this session did not upload, or no longer has"
                )
        checked = call.model_dump_json(by_alias=True, exclude_unset=True).encode()
        first: Message = {"type": "http.request", "body": checked, "more_body": False}
        pending = [first]

        async def again() -> Message:
            return pending.pop() if pending else await request.receive()

        return again


def _with_cookie(request: Request, send: Send) -> Send:
    """Give a browser that opens the page a name."""
    if visit_of(request.scope).path != "/" or COOKIE in request.cookies:
        return send

    async def name(message: Message) -> None:
        if message["type"] == "http.response.start":
            # A proxy may show other servers beside this one.
            path = quote(request.scope.get("root_path", "")) or "/"
            value = f"{COOKIE}={secrets.token_urlsafe(16)}; Path={path}; HttpOnly; SameSite=Lax"
            secure = "; Secure" if request.url.scheme == "https" else ""
            MutableHeaders(scope=message).append("Set-Cookie", value + secure)
        await send(message)

    return name
