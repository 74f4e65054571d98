"""Authentication with tokens, and refusal of cross-site requests."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner.errors import ConfigError
from captioner_serving.server.problems import RefusedError, problem
from captioner_serving.server.request import request_info

_TOKEN = re.compile(r"[\w.~+/-]{16,}=*", re.ASCII)  # RFC 6750, with a minimum length
_PROBE = "/api/health/live"  # needs no token, for health checks of containers


def read_tokens(path: str | None) -> dict[str, str]:
    """Read tokens from a file with lines NAME:TOKEN; return them by name.

    Raises ConfigError: the file cannot be read, other users can read it, or a line is invalid.
    """
    if "CAPTIONER_AUTH" in os.environ:  # a server that had a password must not start without one
        raise ConfigError("CAPTIONER_AUTH is set, but no longer read: use --token-file")
    if path is None:
        return {}
    lines = _read(path).split("\n")
    if os.name == "posix" and Path(path).stat().st_mode & 0o044:
        raise ConfigError(
            f"others on this machine can read --token-file {path}: run chmod 600 {path}"
        )
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, _, token = line.strip().partition(":")
        if line.strip() and not (name and _TOKEN.fullmatch(token)):
            raise ConfigError(
                f"line {number} of --token-file {path} must be NAME:TOKEN, with at least 16 "
                "characters in the token: make one with openssl rand -hex 32"
            )
        if name in tokens:
            raise ConfigError(f"--token-file {path} has the name {name} twice: use another name")
        if name:
            tokens[name] = token
    if not tokens:
        raise ConfigError(f"--token-file {path} has no line NAME:TOKEN")
    return tokens


def is_exposed(path: str | None) -> bool:
    """Return whether other users of this machine can read a file."""
    return path is not None and os.name == "posix" and bool(Path(path).stat().st_mode & 0o044)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"--token-file {path} cannot be read: {reason}") from error


class TrustedHosts:
    """Middleware that refuses requests with an unknown Host header; see ServerConfig.names."""

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self.app = app
        self._names = [name.lower() for name in names]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400."""
        if scope["type"] == "http" and "*" not in self._names:
            host = re.sub(r":\d*$", "", Headers(scope=scope).get("host", "")).lower()
            if not any(host == name or _is_below(host, name) for name in self._names):
                shown = host[:100]
                detail = (
                    f"the host name {shown!r} is not one of this server's: start it with "
                    "--allowed-host NAME to accept it"
                )
                return await problem(RefusedError("bad-request", detail))(scope, receive, send)
        return await self.app(scope, receive, send)


def _is_below(host: str, pattern: str) -> bool:
    """Return whether a host matches a pattern such as *.example.org."""
    return pattern.startswith("*.") and host.endswith(pattern[1:])


class Access:
    """Middleware that requires a token, if the server has any.

    A token is sent as Bearer (RFC 6750), or as the password of any user with HTTP Basic (RFC 7617),
    for browsers. Tokens are compared in constant time.

    Args:
        app: the next application.
        tokens: bearer tokens by name.
        origins: origins of other sites whose pages may call the API.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Mapping[str, str] | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        self.app = app
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
        is_allowed = headers.get("origin") in self._origins and info.is_api
        if scope["method"] not in ("GET", "OPTIONS") and _is_cross_site(headers) and not is_allowed:
            raise RefusedError("cross-site", "a page of another site sent this request")
        if info.route == _PROBE or not self._tokens:
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
        matches = [
            name
            for name, token in self._tokens.items()
            if hmac.compare_digest(secret, token.encode())
        ]
        return matches[0] if matches else None


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
