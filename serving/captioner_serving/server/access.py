"""Who may come in: one password for the page, the API, the metrics and Gradio's own routes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections import OrderedDict

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner_serving.server.addresses import client_of
from captioner_serving.server.credentials import Credentials
from captioner_serving.server.door import visit_of
from captioner_serving.server.problems import ThrottledError, UnauthorizedError, problem

__all__ = ["Access"]

# A wrong password costs its client nothing ten times a minute, and then the rest of the minute.
_ATTEMPTS, _MINUTE, _CLIENTS = 10, 60.0, 10_000


class Access:
    """Lets requests pass that carry the credentials as HTTP Basic (RFC 7617).

    Every browser asks for them, curl has -u, and gradio_client takes a header.
    """

    def __init__(self, app: ASGIApp, credentials: Credentials | None) -> None:
        self.app = app
        self._credentials = credentials
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        # A hash is slow and large on purpose: one at a time, and what it accepted is remembered.
        self._hashing = asyncio.Lock()
        self._accepted = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or ask who it is."""
        if scope["type"] != "http" or self._credentials is None:
            return await self.app(scope, receive, send)
        connection = HTTPConnection(scope)
        client = client_of(scope)
        given = _basic(connection.headers.get("authorization", ""))
        try:
            if await self._accepts(self._credentials, given, client):
                visit_of(scope).user = self._credentials.user
                return await self.app(scope, receive, send)
        except ThrottledError as error:
            return await problem(error)(scope, receive, send)
        detail = "send the user and password that the server was started with, as HTTP Basic"
        return await problem(UnauthorizedError(detail))(scope, receive, send)

    async def _accepts(self, credentials: Credentials, given: bytes | None, client: str) -> bool:
        self._require_patience(client)
        if given is None:
            return False
        if not credentials.hashed:
            good = credentials.match(given)
        else:
            digest = hashlib.sha256(given).digest()
            if hmac.compare_digest(digest, self._accepted):
                return True
            async with self._hashing:
                self._require_patience(client)  # others of its guesses may have failed by now
                good = await asyncio.to_thread(credentials.match, given)
            if good:
                self._accepted = digest
        if not good:
            self._failures.setdefault(client, []).append(time.monotonic())
            while len(self._failures) > _CLIENTS:
                self._failures.popitem(last=False)
        return good

    def _require_patience(self, client: str) -> None:
        """Refuse a client that has guessed too often, right or wrong."""
        recent = [t for t in self._failures.pop(client, []) if time.monotonic() - t < _MINUTE]
        if recent:
            self._failures[client] = recent
        if len(recent) >= _ATTEMPTS:
            detail = f"more than {_ATTEMPTS} wrong passwords in a minute: wait a minute"
            raise ThrottledError(detail)


def _basic(header: str) -> bytes | None:
    """The user:password of an Authorization header; None if it has none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""
