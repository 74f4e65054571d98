"""The door that every request comes through: who sent it, and for which route.

The prefix of a proxy is taken off here and nowhere else, and the headers in which a proxy says who
its client is are believed only from a proxy that was named.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner_serving.server.addresses import Addresses, parse_address
from captioner_serving.server.cookies import only_ours
from captioner_serving.server.routes import Visit, find_route

__all__ = ["Door"]


class Door:
    """Notes in the scope what the others go by; see `routes.Visit`.

    Args:
        app: what stands behind the door.
        root_path: the prefix under which a proxy shows the server, whether it strips it or not.
        trusted_proxies: addresses and networks whose X-Forwarded-For and -Proto are believed.

    """

    def __init__(self, app: ASGIApp, *, root_path: str, trusted_proxies: Iterable[str]) -> None:
        self.app = app
        self._root_path = root_path
        self._trusted = Addresses(trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with everything about it in one form."""
        if scope["type"] == "websocket":  # nothing here speaks it, and nobody asks for its password
            return await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = self._without_prefix(scope["path"])
        headers = Headers(scope=scope)
        client, scheme = scope.get("client"), scope["scheme"]
        if client and client[0] in self._trusted:
            client = self._forwarded(headers) or client
            proto = headers.get("x-forwarded-proto", "").lower()
            scheme = proto if proto in ("http", "https") else scheme
        scope = {
            **scope,
            "client": client,
            "scheme": scheme,
            # Gradio believes them from everybody.
            "headers": [
                (name, value)
                for name, value in only_ours(scope["headers"])
                if not name.startswith(b"x-forwarded-") and name != b"forwarded"
            ],
            "root_path": self._root_path,
            "path": self._root_path + path,  # as ASGI has it: the prefix is part of the path
            "captioner": Visit(path, find_route(path)),
        }
        return await self.app(scope, receive, send)

    def _without_prefix(self, path: str) -> str:
        rest = path.removeprefix(self._root_path)
        if rest == path or (rest and not rest.startswith("/")):
            return path  # there is no prefix: the proxy has taken it off
        return rest or "/"

    def _forwarded(self, headers: Headers) -> tuple[str, int] | None:
        """The last address of the list that is not a proxy's: what is before it anybody may say."""
        listed = ",".join(headers.getlist("x-forwarded-for")).split(",")
        for text in reversed(listed):
            address = parse_address(text)
            if address is None:
                return None
            if str(address) not in self._trusted:
                return str(address), 0
        return None
