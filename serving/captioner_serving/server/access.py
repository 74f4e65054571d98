"""Who may come in: one password for the page, the API, the metrics and Gradio's own routes."""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections import OrderedDict

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner_serving.server.config import Credentials
from captioner_serving.server.problems import ThrottledError, UnauthorizedError, problem

__all__ = ["Access"]

# A wrong password costs its address nothing ten times a minute, and then the rest of the minute.
_ATTEMPTS, _MINUTE, _ADDRESSES = 10, 60.0, 10_000


class Access:
    """Lets requests pass that carry the credentials as HTTP Basic (RFC 7617).

    Every browser asks for them, curl has -u, and gradio_client takes a header.
    """

    def __init__(self, app: ASGIApp, credentials: Credentials | None) -> None:
        self.app = app
        self._expected = None
        if credentials is not None:
            self._expected = f"{credentials.user}:{credentials.password}".encode()
            self._user = credentials.user
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or ask who it is."""
        if scope["type"] == "lifespan" or self._expected is None:
            return await self.app(scope, receive, send)
        connection = HTTPConnection(scope)
        address = connection.client.host if connection.client else ""
        if self._throttled(address):
            detail = f"more than {_ATTEMPTS} wrong passwords in a minute: wait a minute"
            return await problem(ThrottledError(detail))(scope, receive, send)
        given = _basic(connection.headers.get("authorization", ""))
        if given is not None and hmac.compare_digest(given, self._expected):
            scope["user"] = self._user
            return await self.app(scope, receive, send)
        if given is not None:
            self._failures.setdefault(address, []).append(time.monotonic())
            while len(self._failures) > _ADDRESSES:
                self._failures.popitem(last=False)
        detail = "send the user and password that the server was started with, as HTTP Basic"
        return await problem(UnauthorizedError(detail))(scope, receive, send)

    def _throttled(self, address: str) -> bool:
        recent = [t for t in self._failures.pop(address, []) if time.monotonic() - t < _MINUTE]
        if recent:
            self._failures[address] = recent
        return len(recent) >= _ATTEMPTS


def _basic(header: str) -> bytes | None:
    """The user:password of an Authorization header; None if it has none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value.strip(), validate=True)
    except binascii.Error:
        return b""
