"""Authentication: one USER:PASSWORD, bearer tokens, and no requests from other sites' pages.

Secrets come from a file or the environment and are compared in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner.errors import ConfigError
from captioner_serving.server.problems import RefusedError, problem
from captioner_serving.server.request import request_info

__all__ = [
    "AUTH_VARIABLE",
    "Access",
    "Credentials",
    "is_exposed",
    "read_credentials",
    "read_tokens",
]

AUTH_VARIABLE = "CAPTIONER_AUTH"
"""The environment variable that may hold USER:PASSWORD in place of a file."""

_TOKEN = re.compile(r"[\w.~+/-]{16,}=*", re.ASCII)  # RFC 6750, and too long to guess
_PROBE = "/api/health/live"  # reveals nothing, and a container's health check has no password


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The user name and password of the server. The repr hides the password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, password=...)"

    def match(self, given: bytes) -> bool:
        """Compare `user:password` in constant time."""
        return hmac.compare_digest(given, f"{self.user}:{self.password}".encode())


def read_credentials(path: str | None) -> Credentials | None:
    """Read USER:PASSWORD from a file or the environment; return None where neither is given.

    Raises ConfigError: the file cannot be read, or holds no USER:PASSWORD.
    """
    if path is not None:
        text, place = _read(path, "--auth-file"), f"--auth-file {path}"
    elif AUTH_VARIABLE in os.environ:
        text, place = os.environ[AUTH_VARIABLE], AUTH_VARIABLE
    else:
        return None
    user, colon, password = text.strip().partition(":")
    if not (user and colon and password) or "\n" in password:
        raise ConfigError(f"{place} must hold one line, USER:PASSWORD, neither of them empty")
    if password.startswith("$scrypt$"):
        raise ConfigError(f"{place} holds a password hash: write the password itself")
    return Credentials(user=user, password=password)


def read_tokens(path: str | None) -> dict[str, str]:
    """Read bearer tokens from a file, one line NAME:TOKEN each; none without a file.

    Raises ConfigError: the file cannot be read, others can read it, or a line is malformed.
    """
    if path is None:
        return {}
    lines = _read(path, "--token-file").split("\n")
    if is_exposed(path):
        raise ConfigError(
            f"others on this machine can read --token-file {path}: run chmod 600 {path}"
        )
    tokens: dict[str, str] = {}
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
    """Return whether other users of this machine can read a file."""
    return path is not None and os.name == "posix" and bool(Path(path).stat().st_mode & 0o044)


def _read(path: str, option: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{option} {path} cannot be read: {reason}") from error


class Access:
    """Middleware that requires the credentials or a token, where there are any.

    Credentials come as HTTP Basic (RFC 7617), tokens as Bearer (RFC 6750).

    Args:
        app: the application behind it.
        credentials: for every client without a token.
        tokens: by the names of their owners.
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
        may_cross = headers.get("origin") in self._origins and info.is_api
        if scope["method"] not in ("GET", "OPTIONS") and _is_cross_site(headers) and not may_cross:
            raise RefusedError("cross-site", "a page of another site sent this: open our own page")
        if info.route == _PROBE or (self._credentials is None and not self._tokens):
            return
        info.user = self._user(headers.get("authorization", ""))
        if info.user is None:
            # A browser asks its user for a password, where there is one.
            scheme = 'Basic realm="Captioner", charset="UTF-8"' if self._credentials else "Bearer"
            raise RefusedError(
                "unauthorized",
                "send the server's user and password as HTTP Basic, or one of its tokens as Bearer",
                {"WWW-Authenticate": scheme},
            )

    def _user(self, header: str) -> str | None:
        """Return the user that an Authorization header belongs to, or None."""
        scheme, _, value = header.partition(" ")
        value = value.strip()
        if scheme.lower() == "bearer":
            given = value.encode()
            matches = [
                name
                for name, token in self._tokens.items()
                if hmac.compare_digest(given, token.encode())
            ]
            return matches[0] if matches else None
        if scheme.lower() != "basic" or self._credentials is None:
            return None
        try:
            given = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return None
        return self._credentials.user if self._credentials.match(given) else None


def _is_cross_site(headers: Headers) -> bool:
    """Return whether a page of another site sent a request: CORS alone lets a form through."""
    # Browsers send Sec-Fetch-Site over https and to this machine, and Origin with every POST.
    site = headers.get("sec-fetch-site", "").lower()
    if site in ("same-origin", "none", "cross-site"):
        return site == "cross-site"
    # "same-site" may be a subdomain or a port of another owner.
    origin = headers.get("origin")
    if origin is None:
        return False  # not a browser
    try:
        theirs, ours = urlsplit(origin), urlsplit(f"//{headers.get('host', '')}")
        usual = {"http": 80, "https": 443}.get(theirs.scheme)
        same = (theirs.hostname, theirs.port or usual) == (ours.hostname, ours.port or usual)
    except ValueError:
        return True
    return theirs.hostname is None or not same
