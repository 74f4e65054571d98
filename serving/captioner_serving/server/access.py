"""Who may come in: one password for the page, the API, the metrics and Gradio's own routes.

It comes from a file or the environment, in plain or as a hash.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner.errors import ConfigError
from captioner_serving.server.door import client_of, visit_of
from captioner_serving.server.problems import ThrottledError, UnauthorizedError, problem

__all__ = [
    "AUTH_VARIABLE",
    "Access",
    "Credentials",
    "hash_password",
    "is_exposed",
    "read_credentials",
]

AUTH_VARIABLE = "CAPTIONER_AUTH"
"""The environment variable that may hold USER:PASSWORD in place of a file."""

# scrypt as passlib and others write it. 16 MB and some 40 ms a guess.
_HASH = re.compile(r"\$scrypt\$ln=(\d+),r=(\d+),p=(\d+)\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)")
_COST, _BLOCK, _LANES = 14, 8, 1
_MOST_MEMORY = 256_000_000  # bytes; a larger hash would be a way to stop the server


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Who may use the server. Its repr does not tell the password.

    password: itself, or its hash as `hash_password` writes it.
    """

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, password=...)"

    @property
    def hashed(self) -> bool:
        """Whether the password is known by its hash only."""
        return _HASH.fullmatch(self.password) is not None

    def match(self, given: bytes) -> bool:
        """Whether `user:password` is the right one; in the same time, however wrong."""
        user, _, password = given.partition(b":")
        expected = self.password.encode()
        if match := _HASH.fullmatch(self.password):
            cost, block, lanes = map(int, match.groups()[:3])
            salt, expected = _decode(match[4]), _decode(match[5])
            password = _scrypt(password, salt, cost, block, lanes, len(expected))
        right_user = hmac.compare_digest(user, self.user.encode())
        return hmac.compare_digest(password, expected) and right_user


def hash_password(password: str) -> str:
    """Hash a password, for a file that does not tell it."""
    salt = secrets.token_bytes(16)
    digest = _scrypt(password.encode(), salt, _COST, _BLOCK, _LANES, 32)
    return f"$scrypt$ln={_COST},r={_BLOCK},p={_LANES}${_encode(salt)}${_encode(digest)}"


def read_credentials(path: str | None) -> Credentials | None:
    """Read USER:PASSWORD from a file or the environment; None where neither is given.

    Raises:
        ConfigError: the file cannot be read, or there is no USER:PASSWORD in it.

    """
    if path is not None:
        try:
            text, place = Path(path).read_text(encoding="utf-8"), f"--auth-file {path}"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(f"--auth-file {path} cannot be read: {reason}") from error
    elif AUTH_VARIABLE in os.environ:
        text, place = os.environ[AUTH_VARIABLE], AUTH_VARIABLE
    else:
        return None
    user, colon, password = text.strip().partition(":")
    if not (user and colon and password) or "\n" in password:
        raise ConfigError(f"{place} must hold one line, USER:PASSWORD, neither of them empty")
    if password.startswith("$scrypt$"):
        _check_hash(password, place)
    return Credentials(user=user, password=password)


def is_exposed(path: str | None) -> bool:
    """Whether others than its owner can read a file."""
    return path is not None and os.name == "posix" and bool(Path(path).stat().st_mode & 0o044)


def _check_hash(text: str, place: str) -> None:
    """Find out at the start what could not be compared later.

    Raises:
        ConfigError: it is not a hash that this machine can compute.

    """
    try:
        match = _HASH.fullmatch(text)
        if match is None:
            raise ValueError("it is cut off")
        cost, block, lanes = map(int, match.groups()[:3])
        _scrypt(b"", _decode(match[4]), cost, block, lanes, len(_decode(match[5])))
    except (ValueError, OverflowError, MemoryError, binascii.Error) as error:
        raise ConfigError(
            f"the hash in {place} cannot be used ({error}): make one with "
            "captioner serve --hash-password"
        ) from error


def _scrypt(password: bytes, salt: bytes, cost: int, block: int, lanes: int, length: int) -> bytes:
    if cost > 24 or 128 * block * (1 << cost) * lanes > _MOST_MEMORY:
        raise ValueError("it takes too much memory")
    return hashlib.scrypt(
        password, salt=salt, n=1 << cost, r=block, p=lanes, dklen=length, maxmem=2 * _MOST_MEMORY
    )


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


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
