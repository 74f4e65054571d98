"""What browsers are told with every answer, and what they may not send from other sites."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner_serving.server.door import visit_of
from captioner_serving.server.problems import CrossSiteError, problem

__all__ = ["BrowserSafety"]

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


class BrowserSafety:
    """Adds the headers, keeps caches from what is about a photo, and refuses posts of other sites.

    Args:
        app: what stands behind it.
        frame_ancestors: pages that may show this one in a frame, as the policy's directive has
            them; nobody but our own without any.

    """

    def __init__(self, app: ASGIApp, *, frame_ancestors: Sequence[str] = ()) -> None:
        self.app = app
        ancestors = " ".join(("frame-ancestors 'self'", *frame_ancestors))
        self._headers = {**_HEADERS, "Content-Security-Policy": "; ".join((*_POLICY, ancestors))}
        if not frame_ancestors:
            self._headers["X-Frame-Options"] = "SAMEORIGIN"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add to its answer."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                path = visit_of(scope).path
                if message["status"] >= 400 or not path.startswith((*_LASTING, *_CHECKED)):
                    headers["Cache-Control"] = "no-store"
                elif path.startswith(_CHECKED):
                    headers["Cache-Control"] = "no-cache"
            await send(message)

        if scope["method"] not in ("GET", "OPTIONS") and _is_cross_site(Headers(scope=scope)):
            detail = "the browser says that a page of another site sent this: open our own page"
            return await problem(CrossSiteError(detail))(scope, receive, add)
        return await self.app(scope, receive, add)


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
