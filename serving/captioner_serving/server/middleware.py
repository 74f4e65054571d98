"""The middleware of the server, from the outermost to the innermost; BodyLimits comes after it.

RequestContext: describes, counts and logs requests; security headers; unhandled exceptions; refuses
unknown Host headers.
Access: refuses cross-site requests, and checks tokens.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.shared.text import in_a_line
from captioner_serving.memory import is_out_of_memory
from captioner_serving.server.errors import (
    PROBLEMS,
    ClosedError,
    RefusedError,
    RequestInfo,
    current_request,
    problem,
    request_info,
)
from captioner_serving.server.metrics import Metrics

# Gradio needs inline scripts and eval. Other hosts are not allowed for anything.
_POLICY = (
    "default-src 'self'",
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",
    "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data: blob:",
    "media-src 'self' data: blob:",
    "font-src 'self' data:",
    "connect-src 'self' data: blob:",
    "worker-src 'self' blob:",
    "object-src 'none'",
    "base-uri 'self'",
    "form-action 'self'",
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LONGEST_PAUSE, _LONGEST_REST = 1.0, 15.0  # seconds for the rest of a refused body
# Paths of files that never change, and of files that a browser revalidates.
_IMMUTABLE, _REVALIDATED = ("/assets/", "/static/", "/static-offline-docs/"), ("/page/",)
_GONE, _ = PROBLEMS["client-gone"]
_LOGGER = logging.getLogger("captioner.server")
_PROBE = "/api/health/live"  # needs no token, for health checks of containers


class RequestContext:
    """Middleware that describes requests by a `RequestInfo` in the scope, and counts and logs them.

    It adds security headers to every answer, and answers unhandled exceptions. Before a refusal it
    reads the rest of the body, up to `max_rest` bytes. Otherwise clients that send the whole body
    before they read get a connection reset instead of the answer. Requests work with and without
    the prefix `root_path`. For `hosts` see ServerConfig.accepted_hosts.

    `log` gets a line of JSON for each request, without query strings, photo names and tokens; `say`
    gets a message for each failure.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        log: TextIO | None = None,
        say: Callable[[str], None] = lambda _: None,
        max_rest: int = 0,
        routes: Sequence[BaseRoute] = (),
        root_path: str = "",
        frame_ancestors: Sequence[str] = (),
        hosts: Sequence[str] = ("*",),
    ) -> None:
        self.app, self._metrics = app, metrics
        self._log, self._say = log, say
        self._max_rest, self._routes = max_rest, routes
        self._root_path, self._hosts = root_path, [name.lower() for name in hosts]
        ancestors = " ".join(("frame-ancestors 'self'", *frame_ancestors))
        self._headers = {**_HEADERS, "Content-Security-Policy": "; ".join((*_POLICY, ancestors))}
        if not frame_ancestors:
            self._headers["X-Frame-Options"] = "SAMEORIGIN"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and log its answer."""
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, scope = time.perf_counter(), self._described(scope)
        info, rest = request_info(scope), _Rest(receive, Headers(scope=scope), self._max_rest)
        status: int | None = None
        size = 0

        async def add(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = int(message["status"])
                if status >= 400:
                    await rest.read()
                MutableHeaders(scope=message).update(self._headers_of(info, status))
            size += len(message.get("body", b""))
            await send(message)

        try:
            refusal = self._refusal(Headers(scope=scope))
            await (problem(refusal) if refusal else self.app)(scope, rest, add)
        except ClientDisconnect:  # not an error of the server
            status = _GONE
        except asyncio.CancelledError:  # the server is stopping
            if status is None:
                await problem(ClosedError())(scope, rest, add)
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                _LOGGER.exception("%s failed", in_a_line(info.shown_path[:200]))
            if status is None:
                await problem(error)(scope, rest, add)
        return self._record(scope, status or _GONE, size, time.perf_counter() - start)

    def _described(self, scope: Scope) -> Scope:
        path = scope["path"]
        if path == self._root_path or path.startswith(f"{self._root_path}/"):
            path = path.removeprefix(self._root_path) or "/"
        info = RequestInfo(path)
        current_request.set(info)
        scope = {
            **scope,
            # FastAPI has no HEAD routes; uvicorn drops the body of the answer.
            "method": "GET" if scope["method"] == "HEAD" else scope["method"],
            "headers": [header for header in scope["headers"] if _is_trusted(header[0])],
            "root_path": self._root_path,
            "path": self._root_path + path,  # in ASGI, the path includes the prefix
            "captioner": info,
        }
        matching = (route for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        info.route = getattr(next(matching, None), "path", None)
        return scope

    def _refusal(self, headers: Headers) -> RefusedError | None:
        host = re.sub(r":\d*$", "", headers.get("host", "")).lower()
        if any(
            name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:]))
            for name in self._hosts
        ):
            return None
        return RefusedError(
            "bad-request",
            f"the host name {host[:100]!r} is not one of this server's: start it with "
            "--allowed-host NAME to accept it",
        )

    def _headers_of(self, info: RequestInfo, status: int) -> dict[str, str]:
        headers = {**self._headers, "X-Request-ID": info.id}
        if status >= 400 or not info.path.startswith((*_IMMUTABLE, *_REVALIDATED)):
            headers["Cache-Control"] = "no-store"
        elif info.path.startswith(_REVALIDATED):
            headers["Cache-Control"] = "no-cache"
        return headers

    def _record(self, scope: Scope, status: int, size: int, seconds: float) -> None:
        info = request_info(scope)
        name = info.route or "other"
        self._metrics.requests.labels(name, status).inc()
        self._metrics.latency.labels(name).observe(seconds)
        client = (scope.get("client") or ("",))[0]
        if status >= 400:
            path = in_a_line(info.shown_path[:200])
            self._say(f"{client} {scope['method'][:10]} {path}: {status}")
        if self._log is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": info.id,
            "client": client,
            "user": info.user,
            "method": scope["method"],
            "path": info.shown_path,
            "status": status,
            "ms": round(1000 * seconds, 1),
            "bytes": size,
        }
        with suppress(OSError):  # a full disk must not fail requests
            print(json.dumps(line), file=self._log, flush=True)


class _Rest:
    """Forwards a body, and can read what is left of it."""

    def __init__(self, receive: Receive, headers: Headers, limit: int) -> None:
        self._receive, self._limit = receive, limit
        length = headers.get("content-length", "")
        # Without a body there is no rest, and a client that expects 100 waits before it sends.
        self._is_complete = "expect" in headers or not (length or "transfer-encoding" in headers)
        if length.isdecimal() and int(length) > limit:
            self._is_complete = True

    async def __call__(self) -> Message:
        message = await self._receive()
        self._is_complete |= not message.get("more_body", False)
        return message

    async def read(self) -> None:
        """Read the rest, until the client pauses, or sends too much or for too long."""
        size, end = 0, asyncio.get_running_loop().time() + _LONGEST_REST
        try:
            async with asyncio.timeout_at(end):
                while not self._is_complete and size <= self._limit:
                    async with asyncio.timeout(_LONGEST_PAUSE):
                        size += len((await self()).get("body", b""))
        except TimeoutError:
            pass


def _is_trusted(name: bytes) -> bool:
    # Gradio trusts forwarding headers from every client. Cookies are not needed, and parsing one
    # with many backslashes takes minutes (CVE-2024-7592).
    return name not in (b"cookie", b"forwarded") and not name.startswith(b"x-forwarded-")


class Access:
    """Middleware that refuses cross-site requests, and requires a token.

    A token is sent as Bearer (RFC 6750), or as the password of any user with HTTP Basic (RFC 7617),
    for browsers. Tokens are compared in constant time. Pages of `origins` may call the API.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Mapping[str, str] | None = None,
        *,
        origins: Sequence[str] = (),
    ) -> None:
        self.app, self._tokens, self._origins = app, tokens or {}, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        if scope["type"] == "http":
            try:
                self._admit(scope, Headers(scope=scope))
            except RefusedError as error:
                return await problem(error)(scope, receive, send)
        return await self.app(scope, receive, send)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        info = request_info(scope)
        is_allowed = headers.get("origin") in self._origins and info.is_api
        if scope["method"] not in ("GET", "OPTIONS") and _is_cross_site(headers) and not is_allowed:
            raise RefusedError("cross-site", "a page of another site sent this request")
        if info.path == _PROBE or not self._tokens:
            return
        info.user = self._user(headers.get("authorization", ""))
        if info.user is None:
            raise RefusedError(
                "unauthorized",
                "send a token as Bearer, or as the password with HTTP Basic",
                {"WWW-Authenticate": 'Basic realm="Captioner", charset="UTF-8"'},
            )

    def _user(self, header: str) -> str | None:
        """Return the name of the token in an Authorization header; None if it is wrong."""
        scheme, _, value = header.partition(" ")
        secret = value.strip().encode()
        if scheme.lower() == "basic":
            try:
                _, _, secret = base64.b64decode(secret, validate=True).partition(b":")
            except binascii.Error:
                return None
        elif scheme.lower() != "bearer":
            return None
        tokens = self._tokens.items()
        names = [name for name, token in tokens if hmac.compare_digest(secret, token.encode())]
        return names[0] if names else None


def _is_cross_site(headers: Headers) -> bool:
    """Return whether a page of another site sent a request. CORS does not stop forms."""
    # Browsers send Sec-Fetch-Site over https and to localhost, and Origin with every POST.
    site = headers.get("sec-fetch-site", "").lower()
    if site in ("same-origin", "none", "cross-site"):
        return site == "cross-site"
    # "same-site" may be another subdomain or port, so compare the origin.
    origin = headers.get("origin")
    if origin is None:
        return False  # not a browser
    try:
        sender, server = urlsplit(origin), urlsplit(f"//{headers.get('host', '')}")
        usual = {"http": 80, "https": 443}.get(sender.scheme)
        is_same = (sender.hostname, sender.port or usual) == (server.hostname, server.port or usual)
    except ValueError:
        return True
    return sender.hostname is None or not is_same
