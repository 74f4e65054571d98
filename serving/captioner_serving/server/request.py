"""What is known of a request: its route, user and client."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Literal

from starlette.types import Scope

_OLLAMA = re.compile(
    r"/api/(generate|chat|show|tags|ps|version|pull|push|create|copy|delete|embed|embeddings|blobs/.+)"
)


@dataclass(eq=False)
class RequestInfo:
    """Information about a request, which `middleware.RequestLimits` adds to the scope."""

    path: str  # without the prefix of a proxy
    route: str | None = None  # its pattern
    user: str | None = None  # the name of the token
    is_reported: bool = False  # an error of a photo was counted and reported on the terminal
    # A unique text for the answer's headers, the problem document and the log.
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def is_api(self) -> bool:
        """Whether the route belongs to the API."""
        return self.path.startswith(("/api/", "/v1/"))

    @property
    def protocol(self) -> Literal["ollama", "openai"] | None:
        """The protocol that defines the form of errors; None: RFC 9457."""
        if self.path.startswith("/v1/"):
            return "openai"
        return "ollama" if _OLLAMA.fullmatch(self.path) else None

    @property
    def shown_path(self) -> str:
        """The path without text from clients."""
        if self.route is None:
            first, slash, _ = self.path[1:].partition("/")
            return f"/{first[:40]}{'/...' if slash else ''}"
        return self.route


current_request: ContextVar[RequestInfo | None] = ContextVar("current_request", default=None)
"""The current request, for the form of its errors."""


def request_info(scope: Scope) -> RequestInfo:
    """Return the information that `middleware.RequestLimits` added to the scope."""
    info: RequestInfo = scope["captioner"]
    return info


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, with or without brackets; IPv4-mapped ones become IPv4."""
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
