"""The outermost middleware: known routes, trusted headers, security headers.

It strips the prefix of a proxy. Paths outside the table of routes are refused, because Gradio has
routes that open files and download URLs; the page and gradio_client do not need them.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Names of routes for logs and metrics. Clients must not be able to add names.
_ROUTES = [
    (name, re.compile(path, re.DOTALL))
    for name, path in {
        "/api/caption": r"/api/caption",
        "/api/overlay": r"/api/overlay",
        "/api/sheet": r"/api/sheet",
        "/api/animation": r"/api/animation",
        "/api/health/live": r"/api/health/live",
        "/api/health": r"/api/health(/ready)?",
        "/api/generate": r"/api/generate",
        "/api/chat": r"/api/chat",
        "/api/show": r"/api/show",
        "/api/tags": r"/api/(tags|ps)",
        "/api/version": r"/api/version",
        "/v1/chat/completions": r"/v1/chat/completions",
        "/v1/responses": r"/v1/responses",
        "/v1/models": r"/v1/models(/.+)?",
        "/metrics": r"/metrics",
        "/docs": r"/docs|/openapi\.json|/static-offline-docs/.+",
        "/page/samples": r"/page/(samples/[^/]+|preview\.jpg)",
        "/page/static": r"/page/static/.+",
        "/gradio_api/upload": r"/gradio_api/upload/?",
        "/gradio_api/queue": r"/gradio_api/(queue/(join|data)|cancel|reset)/?",
        "/gradio_api/heartbeat": r"/gradio_api/heartbeat/[\w-]+/?",
        "/gradio_api/mcp": r"/gradio_api/mcp/?",
        "/gradio_api": r"/gradio_api/(info|startup-events|app_id|login_check)?/?",
        "/assets": r"/(assets|static)/.+",
        "/": r"/|/(config|theme\.css|manifest\.json|favicon\.ico|robots\.txt)/?",
    }.items()
]

_METHODS = {
    **dict.fromkeys(
        (
            *("/api/caption", "/api/overlay", "/api/sheet", "/api/animation"),
            *("/api/generate", "/api/chat", "/api/show", "/v1/chat/completions", "/v1/responses"),
            "/gradio_api/mcp",
        ),
        "POST",
    ),
    **dict.fromkeys(
        (
            *("/api/health/live", "/api/health", "/metrics", "/docs"),
            *("/api/tags", "/api/version", "/v1/models"),
            *("/page/samples", "/page/static"),
        ),
        "GET",
    ),
}

_OLLAMA = re.compile(
    r"/api/(generate|chat|show|tags|ps|version|pull|push|create|copy|delete|embed|embeddings|blobs/.+)"
)

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
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_LONGEST_PAUSE, _LONGEST_REST = 1.0, 15.0  # seconds for the rest of a refused body

# Paths of files that never change, and of files that a browser revalidates.
_IMMUTABLE, _REVALIDATED = ("/assets/", "/static/", "/static-offline-docs/"), ("/page/",)


def find_route(path: str) -> str | None:
    """Return the name of a path's route, or None."""
    return next((name for name, pattern in _ROUTES if pattern.fullmatch(path)), None)


@dataclass(eq=False)
class RequestInfo:
    """Information about a request, which `RequestLimits` adds to the scope.

    path: without the prefix of a proxy.
    route: the name in the table of routes, or None.
    user: the authenticated user.
    is_reported: whether the request's photos were already reported on the terminal.
    id: a unique text, for the answer's headers, the problem document and the log.
    """

    path: str
    route: str | None
    user: str | None = None
    is_reported: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def is_api(self) -> bool:
        """Whether the route belongs to the API."""
        return (self.route or "").startswith(("/api/", "/v1/"))

    @property
    def protocol(self) -> Literal["ollama", "openai"] | None:
        """The protocol that defines the form of errors; None: RFC 9457."""
        if self.path.startswith("/v1/"):
            return "openai"
        return "ollama" if _OLLAMA.fullmatch(self.path) else None

    @property
    def method(self) -> str | None:
        """The allowed method; None: any that Gradio allows."""
        return _METHODS.get(self.route or "")

    @property
    def shown_path(self) -> str:
        """The path without text from clients and without session identifiers."""
        if self.route is None:
            first, slash, _ = self.path[1:].partition("/")
            return f"/{first[:40]}{'/...' if slash else ''}"
        return self.route if self.route.startswith("/gradio_api") else self.path


current_request: ContextVar[RequestInfo | None] = ContextVar("current_request", default=None)
"""The current request, for the form of its errors."""


def request_info(scope: Scope) -> RequestInfo:
    """Return the information that `RequestLimits` added to the scope."""
    info: Any = scope["captioner"]
    if not isinstance(info, RequestInfo):
        raise TypeError("the request did not pass RequestLimits")
    return info


class RequestLimits:
    """Middleware that adds a `RequestInfo` to the scope and security headers to every answer.

    Before a refusal it reads the rest of the body. Many clients first send all of it, and would see
    a reset connection in place of the answer.

    Args:
        app: the next application.
        max_rest: the largest rest of a refused body that is read, in bytes.
        root_path: the path prefix of the server behind a proxy. Requests work with and without it.
        frame_ancestors: origins that may embed the page.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_rest: int = 0,
        root_path: str = "",
        frame_ancestors: Sequence[str] = (),
    ) -> None:
        self.app = app
        self._max_rest = max_rest
        self._root_path = root_path
        ancestors = " ".join(("frame-ancestors 'self'", *frame_ancestors))
        self._headers = {**_HEADERS, "Content-Security-Policy": "; ".join((*_POLICY, ancestors))}
        if not frame_ancestors:
            self._headers["X-Frame-Options"] = "SAMEORIGIN"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"]
        if path == self._root_path or path.startswith(f"{self._root_path}/"):
            path = path.removeprefix(self._root_path) or "/"
        info = RequestInfo(path, find_route(path))
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

        rest = _Rest(receive, Headers(scope=scope), self._max_rest)

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] >= 400:
                    await rest.read()
                headers = MutableHeaders(scope=message)
                headers.update({**self._headers, "X-Request-ID": info.id})
                if message["status"] >= 400 or not path.startswith((*_IMMUTABLE, *_REVALIDATED)):
                    headers["Cache-Control"] = "no-store"
                elif path.startswith(_REVALIDATED):
                    headers["Cache-Control"] = "no-cache"
            await send(message)

        return await self.app(scope, rest, add)


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
    """Return whether a header is passed on.

    Forwarding headers are dropped because Gradio trusts them from every client. Cookies are not
    needed, and parsing one with many backslashes takes minutes (CVE-2024-7592).
    """
    return name not in (b"cookie", b"forwarded") and not name.startswith(b"x-forwarded-")


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, with or without brackets; return None if it is invalid.

    IPv4-mapped IPv6 addresses become IPv4.
    """
    try:
        address = ip_address(text.strip().removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def client_key(host: str) -> str:
    """Return the key of a client for limits: its address, or its /64 network for IPv6."""
    address = parse_address(host)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return host if address is None else str(address)


def client_of(scope: Scope) -> str:
    """Return the key of a request's client; see `client_key`."""
    return client_key((scope.get("client") or ("",))[0])
