"""Every route of the server in one table: log, metrics, caches and admission all go by it.

What is not in the table does not exist. Gradio can open paths, fetch links, proxy and record; of
its routes only those stand here that the page needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

__all__ = ["ROUTES", "Route", "Visit", "find_route", "visit_of"]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One route, or a few that are treated alike.

    name: in the metrics, so that no client can make them grow.
    path: a regular expression for the whole path, below the prefix of a proxy.
    methods: that it answers; GET brings HEAD.
    shown: stands in the log in place of a path that names a photo or opens one to its reader.
    lasting: what is found there never changes under its name; everything else may be about
        somebody's photo, and no cache may hold it.
    checked: a browser may keep what is found there, and asks each time whether it has changed.
    stream: stays open for as long as the client likes.
    picture: is drawn when it is asked for, and large.
    hint: what to do instead, for a client that used another method.
    """

    name: str
    path: str
    methods: tuple[str, ...] = ("GET", "HEAD")
    shown: str | None = None
    lasting: bool = False
    checked: bool = False
    stream: bool = False
    picture: bool = False
    hint: str = "send a GET request"


_POST = ("POST",)

ROUTES = (
    Route(
        name="/api/caption",
        path=r"/api/caption",
        methods=_POST,
        hint="POST a photo to it, as curl -F image=@photo.jpg does",
    ),
    Route(
        name="/api/picture",
        path=r"/api/(overlay|sheet|animation)",
        methods=_POST,
        picture=True,
        hint="POST a photo and its record to it",
    ),
    Route(
        name="/api/effect",
        path=r"/api/effect",
        methods=_POST,
        hint="POST a photo and its record to it",
    ),
    Route(name="/api/health", path=r"/api/health"),
    Route(name="/metrics", path=r"/metrics"),
    Route(name="/docs", path=r"/docs|/openapi\.json"),
    Route(name="/docs", path=r"/static-offline-docs/.+", lasting=True),
    Route(
        name="/page/captions",
        path=r"/page/captions",
        methods=_POST,
        hint="POST a photo to it; other programs have /api/caption",
    ),
    Route(
        name="/page/captions",
        path=r"/page/captions/[^/]+",
        shown="/page/captions/...",
    ),
    Route(
        name="/page/captions",
        path=r"/page/captions/[^/]+/[^/]+",
        shown="/page/captions/...",
        picture=True,
    ),
    Route(name="/page/samples", path=r"/page/samples/[^/]+", checked=True),
    Route(name="/page/static", path=r"/page/static/.+", checked=True),
    Route(
        name="/gradio_api/upload",
        path=r"/gradio_api/upload/?",
        methods=_POST,
        hint="POST a photo to it",
    ),
    Route(name="/gradio_api/file", path=r"/gradio_api/file=.*", shown="/gradio_api/file=..."),
    Route(
        name="/gradio_api/queue",
        path=r"/gradio_api/(queue/join|cancel|reset)/?",
        methods=_POST,
        hint="POST a call of the page to it",
    ),
    Route(
        name="/gradio_api/queue", path=r"/gradio_api/queue/data/?", methods=("GET",), stream=True
    ),
    Route(
        name="/gradio_api/heartbeat",
        path=r"/gradio_api/heartbeat/[\w-]+/?",
        methods=("GET",),
        shown="/gradio_api/heartbeat/...",
        stream=True,
    ),
    Route(
        name="/gradio_api",
        path=r"/gradio_api/(info|startup-events|app_id|login_check|upload_progress)?/?",
    ),
    Route(name="/assets", path=r"/(assets|static)/.+", lasting=True),
    Route(
        name="/",
        path=r"/|/(config|theme\.css|manifest\.json|favicon\.ico|robots\.txt)/?",
    ),
)

_PATTERNS = [(re.compile(route.path, re.DOTALL), route) for route in ROUTES]


def find_route(path: str) -> Route | None:
    """Find the route of a path, which may hold anything that a client can send."""
    return next((route for pattern, route in _PATTERNS if pattern.fullmatch(path)), None)


@dataclass(eq=False)
class Visit:
    """What the door found out about a request, for all who stand behind it.

    path: below the prefix of a proxy.
    route: its line of the table; None where there is none.
    user: who came in with the password.
    told: what became of its photos has been said already.
    """

    path: str
    route: Route | None
    user: str | None = None
    told: bool = False

    @property
    def shown_path(self) -> str:
        """The path without what gives access to somebody's photo."""
        if self.route is None:
            first, slash, _ = self.path[1:].partition("/")
            return f"/{first[:40]}{'/...' if slash else ''}"
        return self.route.shown or self.path


def visit_of(scope: Scope) -> Visit:
    """What the door noted."""
    visit: Any = scope["captioner"]
    if not isinstance(visit, Visit):
        raise TypeError("the request did not come through the door")
    return visit
