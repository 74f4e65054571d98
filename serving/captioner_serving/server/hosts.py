"""For whom the server answers: its own names, and pages of its own.

A page from elsewhere can point a name of its own at this machine (DNS rebinding) and would then
read what only this machine may; and it can send forms to any server without reading the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner_serving.server.addresses import parse_address
from captioner_serving.server.problems import CrossSiteError, HostError, problem

__all__ = ["Hosts"]


class Hosts:
    """Refuses requests for other names, and writing requests from other sites.

    Args:
        app: what stands behind it.
        host: where the server listens. An address in place of a name is believed, for no page can
            have one that is not its own; on this machine alone, only this machine's.
        allowed: further names; `*.example.org` stands for all names below.

    """

    def __init__(self, app: ASGIApp, *, host: str, allowed: Iterable[str]) -> None:
        self.app = app
        self._names = {"localhost", *map(_name, (host, *allowed))}
        address = parse_address(host)
        self._local = host == "localhost" or (address is not None and address.is_loopback)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        host = headers.get("host")
        if host is not None and not self._answers_for(_name(host)):
            return await problem(HostError(_name(host)[:80]))(scope, receive, send)
        if scope["method"] not in ("GET", "HEAD", "OPTIONS") and _is_cross_site(headers):
            detail = "the browser says that a page of another site sent this: open our own page"
            return await problem(CrossSiteError(detail))(scope, receive, send)
        return await self.app(scope, receive, send)

    def _answers_for(self, name: str) -> bool:
        address = parse_address(name)
        if address is not None and (address.is_loopback or not self._local):
            return True
        if name in self._names or name.endswith(".localhost"):
            return True
        return any(
            pattern.startswith("*.") and name.endswith(pattern[1:]) for pattern in self._names
        )


def _name(host: str) -> str:
    """A Host header without its port, as names are compared."""
    bare = host if parse_address(host) else re.sub(r":\d*$", "", host.strip())
    return bare.strip("[]").removesuffix(".").lower()


def _is_cross_site(headers: Headers) -> bool:
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
