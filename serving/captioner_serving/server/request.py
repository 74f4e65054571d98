"""The table of routes, and what is known of a request: its route, user and client.

Paths outside the table are refused, because Gradio has routes that open files and download URLs;
the page and gradio_client do not need them.
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Literal

from starlette.types import Scope

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


def find_route(path: str) -> str | None:
    """Return the name of a path's route, or None."""
    return next((name for name, pattern in _ROUTES if pattern.fullmatch(path)), None)


@dataclass(eq=False)
class RequestInfo:
    """Information about a request, which `middleware.RequestLimits` adds to the scope.

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
    """Return the information that `middleware.RequestLimits` added to the scope."""
    info: Any = scope["captioner"]
    if not isinstance(info, RequestInfo):
        raise TypeError("the request did not pass RequestLimits")
    return info


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
