"""Who may come in: no page of another site, and who has the password, for whatever there is.

The password comes from a file or the environment, in plain or as a hash.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner.errors import ConfigError
from captioner_serving.server.door import client_of, visit_of
from captioner_serving.server.problems import RefusedError, problem

__all__ = [
    "AUTH_VARIABLE",
    "Access",
    "Credentials",
    "hash_password",
    "is_exposed",
    "read_credentials",
    "read_tokens",
]

AUTH_VARIABLE = "CAPTIONER_AUTH"
"""The environment variable that may hold USER:PASSWORD in place of a file."""

# scrypt as passlib and others write it, at 16 MB and some 40 ms a guess: salt and digest.
_HASH = re.compile(r"\$scrypt\$ln=14,r=8,p=1\$([A-Za-z0-9+/]{22})\$([A-Za-z0-9+/]{43})")

_TOKEN = re.compile(r"[\w.~+/-]{16,}=*", re.ASCII)  # of RFC 6750, and long enough not to be guessed


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
            expected = _decode(match[2])
            password = _scrypt(password, _decode(match[1]))
        right_user = hmac.compare_digest(user, self.user.encode())
        return hmac.compare_digest(password, expected) and right_user


def hash_password(password: str) -> str:
    """Hash a password, for a file that does not tell it."""
    salt = secrets.token_bytes(16)
    digest = _scrypt(password.encode(), salt)
    return f"$scrypt$ln=14,r=8,p=1${_encode(salt)}${_encode(digest)}"


def read_credentials(path: str | None) -> Credentials | None:
    """Read USER:PASSWORD from a file or the environment; None where neither is given.

    Raises ConfigError: the file cannot be read, or there is no USER:PASSWORD in it.
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
    credentials = Credentials(user=user, password=password)
    if password.startswith("$scrypt$") and not credentials.hashed:
        raise ConfigError(
            f"the hash in {place} cannot be used: make one with captioner serve --hash-password"
        )
    return credentials


def read_tokens(path: str | None) -> dict[str, str]:
    """Read bearer tokens from a file, a line NAME:TOKEN each; none without a file.

    Raises ConfigError: the file cannot be read, others can read it, or a line is none.
    """
    if path is None:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"--token-file {path} cannot be read: {reason}") from error
    if is_exposed(path):
        raise ConfigError(
            f"others on this machine can read --token-file {path}: run chmod 600 {path}"
        )
    tokens = {}
    for number, line in enumerate(lines, 1):
        name, _, token = line.strip().partition(":")
        if line.strip() and not (name and _TOKEN.fullmatch(token)):
            raise ConfigError(
                f"line {number} of --token-file {path} is no NAME:TOKEN with a token of 16 "
                "characters or more: make one with openssl rand -hex 32"
            )
        if name in tokens:
            raise ConfigError(f"--token-file {path} has the name {name} twice: use another")
        if name:
            tokens[name] = token
    if not tokens:
        raise ConfigError(f"--token-file {path} has no line NAME:TOKEN")
    return tokens


def is_exposed(path: str | None) -> bool:
    """Whether others than its owner can read a file."""
    return path is not None and os.name == "posix" and bool(Path(path).stat().st_mode & 0o044)


def _scrypt(password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=1 << 14, r=8, p=1, dklen=32)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


# A wrong password costs its client nothing ten times a minute, and then the rest of the minute.
_ATTEMPTS, _MINUTE, _CLIENTS = 10, 60.0, 10_000


class Access:
    """Lets requests pass that carry the credentials, or a token, where there are any.

    The credentials come as HTTP Basic (RFC 7617): every browser asks for them, curl has -u, and
    gradio_client takes a header. Tokens come as Bearer (RFC 6750).

    Args:
        app: what stands behind it.
        credentials: of everybody who has no token.
        tokens: by the names of those who have them.
        origins: other sites whose pages may call the API.
    """

    def __init__(
        self,
        app: ASGIApp,
        credentials: Credentials | None,
        tokens: Mapping[str, str] | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        self.app = app
        self._credentials = credentials
        self._tokens = tokens or {}
        self._origins = origins
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        # A hash is slow and large on purpose: one at a time, and what it accepted is remembered.
        self._hashing = asyncio.Lock()
        self._accepted = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or ask who it is."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            await self._admit(scope, Headers(scope=scope))
        except RefusedError as error:
            return await problem(error)(scope, receive, send)
        return await self.app(scope, receive, send)

    async def _admit(self, scope: Scope, headers: Headers) -> None:
        may_cross = headers.get("origin") in self._origins and visit_of(scope).is_api
        if scope["method"] not in ("GET", "OPTIONS") and _is_cross_site(headers) and not may_cross:
            raise RefusedError(
                "cross-site",
                "the browser says that a page of another site sent this: open our own page",
            )
        if self._credentials is None and not self._tokens:
            return
        user = await self._user_of(headers.get("authorization", ""), client_of(scope))
        if user is None:
            raise RefusedError(
                "unauthorized",
                "send the user and password that the server was started with, as HTTP Basic, or "
                "one of its tokens, as Bearer",
                # A browser asks its user for a password, where there is one.
                {
                    "WWW-Authenticate": 'Basic realm="Captioner", charset="UTF-8"'
                    if self._credentials
                    else "Bearer"
                },
            )
        visit_of(scope).user = user

    async def _user_of(self, header: str, client: str) -> str | None:
        """Name who sends a header; None: nobody who may come in."""
        self._require_patience(client)
        scheme, _, value = header.partition(" ")
        if scheme.lower() == "bearer" and self._tokens:
            given = value.strip().encode()
            found = [
                name
                for name, token in self._tokens.items()
                if hmac.compare_digest(given, token.encode())
            ]
            if not found:
                self._count_failure(client)
            return found[0] if found else None
        password = _basic(header)
        if password is None or self._credentials is None:
            return None
        good = await self._accepts(self._credentials, password, client)
        return self._credentials.user if good else None

    async def _accepts(self, credentials: Credentials, given: bytes, client: str) -> bool:
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
            self._count_failure(client)
        return good

    def _count_failure(self, client: str) -> None:
        self._failures.setdefault(client, []).append(time.monotonic())
        while len(self._failures) > _CLIENTS:
            self._failures.popitem(last=False)

    def _require_patience(self, client: str) -> None:
        """Refuse a client that has guessed too often, right or wrong."""
        recent = [t for t in self._failures.pop(client, []) if time.monotonic() - t < _MINUTE]
        if recent:
            self._failures[client] = recent
        if len(recent) >= _ATTEMPTS:
            detail = f"more than {_ATTEMPTS} wrong passwords in a minute: wait a minute"
            raise RefusedError("too-many-attempts", detail, {"Retry-After": f"{_MINUTE:.0f}"})


def _basic(header: str) -> bytes | None:
    """The user:password of an Authorization header; None if it has none."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _is_cross_site(headers: Headers) -> bool:
    """Whether a page from elsewhere sent a request: CORS alone lets a form through."""
    # Browsers send Sec-Fetch-Site over https and to this machine; Origin with every POST.
    site = headers.get("sec-fetch-site", "").lower()
    if site in ("same-origin", "none", "cross-site"):
        return site == "cross-site"
    # "same-site" may be another subdomain, or another port, which somebody else may have.
    origin = headers.get("origin")
    if origin is None:
        return False  # no browser
    try:
        theirs, ours = urlsplit(origin), urlsplit(f"//{headers.get('host', '')}")
        usual = {"http": 80, "https": 443}.get(theirs.scheme)
        same = (theirs.hostname, theirs.port or usual) == (ours.hostname, ours.port or usual)
    except ValueError:
        return True
    return theirs.hostname is None or not same
