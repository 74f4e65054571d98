"""Between the world and Gradio: only the routes that the page needs, and only files of one's own.

Gradio can open paths, fetch links, proxy and record; the page needs none of that. What is not on
the list below does not exist, and a request that names a file has to name one that this server
stored for the same session (see store.py).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner_serving.server.problems import (
    ForbiddenError,
    RequestError,
    UploadTooLargeError,
    problem,
)
from captioner_serving.server.store import UploadStore

__all__ = ["COOKIE", "GradioGuard"]

COOKIE = "captioner_page"
"""Names the browser that uploaded a photo, so that the photo is shown to no other."""

_GET = re.compile(
    r"/(config|theme\.css|manifest\.json|favicon\.ico|robots\.txt|assets/.+|static/.+"
    r"|gradio_api/(info|queue/data|heartbeat/[\w-]+|startup-events|app_id|login_check))?/?"
)
_POST = re.compile(r"/gradio_api/(queue/join|cancel|reset)/?")
_MAX_BODY = 1_000_000  # a request to the page's functions holds numbers and a path


class GradioGuard:
    """Wraps Gradio's part of the application.

    Args:
        app: what serves Gradio's routes.
        store: knows whose file is whose.

    """

    def __init__(self, app: ASGIApp, store: UploadStore) -> None:
        self.app = app
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what the page needs."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        request = Request(scope, receive)
        path = _path(scope)
        if request.method in ("GET", "HEAD") and _GET.fullmatch(path):
            return await self.app(scope, receive, _with_cookie(request, path, send))
        if request.method == "POST" and _POST.fullmatch(path):
            return await self._post(request, scope, send)
        missing = PlainTextResponse("there is nothing here\n", status_code=404)
        return await missing(scope, receive, send)

    async def _post(self, request: Request, scope: Scope, send: Send) -> None:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_BODY:
                big = UploadTooLargeError("a call of the page is small: upload photos first")
                return await problem(big)(scope, request.receive, send)
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            error = RequestError("the body is not JSON")
            return await problem(error)(scope, request.receive, send)
        session = data.get("session_hash") if isinstance(data, dict) else None
        session = session if isinstance(session, str) else None
        for path in _named_files(data):
            if not (isinstance(path, str) and self._store.claim(path, session)):
                detail = "the call names a file that this session did not upload, or no longer has"
                return await problem(ForbiddenError(detail))(scope, request.receive, send)
        return await self.app(scope, _replay(bytes(body), request.receive), send)


def _path(scope: Scope) -> str:
    """The path below the root under which a proxy shows the server."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def _named_files(data: Any) -> Iterator[Any]:
    """Every value that Gradio might take for the place of a file."""
    pending = [data]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if "path" in value:
                yield value["path"]
            elif "url" in value or "meta" in value:
                yield None  # a file without a path of ours: Gradio would look for one
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the application a body that has been read already, then what comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


def _with_cookie(request: Request, path: str, send: Send) -> Send:
    """Give a browser that opens the page a name."""
    if path != "/" or COOKIE in request.cookies:
        return send

    async def name(message: Message) -> None:
        if message["type"] == "http.response.start":
            value = f"{COOKIE}={secrets.token_urlsafe(16)}; Path=/; HttpOnly; SameSite=Lax"
            MutableHeaders(scope=message).append("Set-Cookie", value)
        await send(message)

    return name
