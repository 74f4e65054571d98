"""The door that every request comes through: its route, what of it is believed, and headers.

The prefix of a proxy is taken off here and nowhere else. What is not in the table of routes does
not exist: Gradio can open paths, fetch links, proxy and record, and of its routes only those stand
here that the page and gradio_client need.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "Door",
    "Visit",
    "client_of",
    "find_route",
    "parse_address",
    "request_number",
    "visit_of",
    "whole_client",
]

# By the name that log and metrics have for them, so that no client can make these grow.
_ROUTES = [
    (name, re.compile(path, re.DOTALL))
    for name, path in {
        "/api/caption": r"/api/caption",
        "/api/effect": r"/api/effect",
        "/api/overlay": r"/api/overlay",
        "/api/sheet": r"/api/sheet",
        "/api/animation": r"/api/animation",
        "/api/health": r"/api/(health|ready)",
        "/api/live": r"/api/live",
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
            *("/api/caption", "/api/effect", "/api/overlay", "/api/sheet", "/api/animation"),
            "/gradio_api/mcp",
        ),
        "POST",
    ),
    **dict.fromkeys(
        ("/api/health", "/api/live", "/metrics", "/docs", "/page/samples", "/page/static"), "GET"
    ),
}

# Gradio's page starts from inline scripts and compiles its templates, so scripts may be inline;
# but nothing, script or picture, may come from another host or go to one.
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
# What never changes under its name, and what a browser may keep and asks for anew each time.
_LASTING, _CHECKED = ("/assets/", "/static/", "/static-offline-docs/"), ("/page/",)


request_number: ContextVar[str | None] = ContextVar("request_number", default=None)
"""Of the request that is being answered, for its problem document."""


def find_route(path: str) -> str | None:
    """Name the route of a path, which may hold anything that a client can send."""
    return next((name for name, pattern in _ROUTES if pattern.fullmatch(path)), None)


@dataclass(eq=False)
class Visit:
    """What is known of a request, for all who stand behind the door.

    path: below the prefix of a proxy.
    route: its name; None where there is none.
    user: who came in with the password.
    silent: the terminal has a line about its photos already.
    number: of this request alone: in the answer, its problem document and the log.
    """

    path: str
    route: str | None
    user: str | None = None
    silent: bool = False
    number: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def is_api(self) -> bool:
        """Whether other programs call it, and not the page's own parts."""
        return (self.route or "").startswith("/api/")

    @property
    def method(self) -> str | None:
        """What the route answers to; None: Gradio knows."""
        return _METHODS.get(self.route or "")

    @property
    def shown_path(self) -> str:
        """The path without what a stranger wrote, and without what names a session."""
        if self.route is None:
            first, slash, _ = self.path[1:].partition("/")
            return f"/{first[:40]}{'/...' if slash else ''}"
        return self.route if self.route.startswith("/gradio_api") else self.path


def visit_of(scope: Scope) -> Visit:
    """What the door noted."""
    visit: Any = scope["captioner"]
    if not isinstance(visit, Visit):
        raise TypeError("the request did not come through the door")
    return visit


class Door:
    """Notes in the scope what the others go by (see `Visit`), and adds headers to every answer.

    Args:
        app: what stands behind the door.
        root_path: the prefix under which a proxy shows the server, whether it strips it or not.
        frame_ancestors: pages that may show ours in a frame, as the policy's directive has them;
            nobody but our own without any.
    """

    def __init__(
        self, app: ASGIApp, *, root_path: str = "", frame_ancestors: Sequence[str] = ()
    ) -> None:
        self.app = app
        self._root_path = root_path
        ancestors = " ".join(("frame-ancestors 'self'", *frame_ancestors))
        self._headers = {**_HEADERS, "Content-Security-Policy": "; ".join((*_POLICY, ancestors))}
        if not frame_ancestors:
            self._headers["X-Frame-Options"] = "SAMEORIGIN"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with everything about it in one form."""
        if scope["type"] == "websocket":  # nothing here speaks it, and nobody asks for its password
            return await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"]
        if path == self._root_path or path.startswith(f"{self._root_path}/"):
            path = path.removeprefix(self._root_path) or "/"
        visit = Visit(path, find_route(path))
        request_number.set(visit.number)
        scope = {
            **scope,
            # FastAPI's routes know only GET; uvicorn drops the body of a HEAD.
            "method": "GET" if scope["method"] == "HEAD" else scope["method"],
            "headers": [header for header in scope["headers"] if _is_believed(header[0])],
            "root_path": self._root_path,
            "path": self._root_path + path,  # as ASGI has it: the prefix is part of the path
            "captioner": visit,
        }

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({**self._headers, "X-Request-ID": visit.number})
                if message["status"] >= 400 or not path.startswith((*_LASTING, *_CHECKED)):
                    headers["Cache-Control"] = "no-store"
                elif path.startswith(_CHECKED):
                    headers["Cache-Control"] = "no-cache"
            await send(message)

        return await self.app(scope, receive, add)


def _is_believed(name: bytes) -> bool:
    """Whether a header may come in.

    Gradio believes what is said of proxies from everybody. Nothing here needs a cookie, and
    Python's reader takes minutes for one of 60 kB of backslashes (CVE-2024-7592).
    """
    return name not in (b"cookie", b"forwarded") and not name.startswith(b"x-forwarded-")


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address, in brackets or not; an IPv4 one inside IPv6 is IPv4. None if it is none."""
    try:
        address = ip_address(text.strip().removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def whole_client(host: str) -> str:
    """Name the client behind an address: with IPv6 everybody has a /64, and 2^64 addresses."""
    address = parse_address(host)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return host if address is None else str(address)


def client_of(scope: Scope) -> str:
    """Name the client of a request."""
    return whole_client((scope.get("client") or ("",))[0])
