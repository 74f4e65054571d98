"""Closing a connection whose request is not all there: the answer first, the rest thrown away.

A socket that is closed with bytes unread resets its connection, and the client's system then throws
away the answer that it has not read: a photo refused because the server is busy would look like a
server that broke. So the answer is sent to its end, and the rest of the request is taken in and
thrown away until the client closes too, as RFC 9112 (9.6) asks of servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11

__all__ = ["ClosingConnection", "LingeringTransport"]

_BYTES = 100_000_000
"""What is thrown away of one request at most: some photos of a size that is refused."""


class ClosingConnection(h11.Connection):
    """Says with an answer that comes before its request's end that it is the connection's last.

    It also refuses requests that tell their length in two ways: a proxy may have believed the other
    one, and then what follows is not what it took it for (RFC 9112, 6.1).
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Read on.

        Raises:
            h11.RemoteProtocolError: this is no request that can be read.

        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
        return event

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """Turn an event of the answer into bytes; `send` joins them."""
        if isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY:
            headers = [(name, value) for name, value in event.headers if name != b"connection"]
            event = h11.Response(
                status_code=event.status_code,
                headers=[*headers, (b"connection", b"close")],
                reason=event.reason,
            )
        return super().send_with_data_passthrough(event)


class LingeringTransport:
    """Stands before a connection's transport, and is it in all but `close`.

    Args:
        transport: the connection.
        linger: asked when the connection is to be closed: whether a request is still on its way.
            Whoever says so ends the connection when it has lasted long enough.

    """

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], bool]) -> None:
        self._transport = transport
        self._linger: Callable[[], bool] | None = linger
        self._left = _BYTES
        self.lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more can be answered."""
        return self.lingering or self._transport.is_closing()

    def close(self) -> None:
        """Close when all is sent, and where a request is on its way, when its client closes."""
        if self.lingering:
            return
        self.lingering = self._linger is not None and self._linger()
        if not self.lingering:
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has closed already
            self._transport.close()
        else:
            self._transport.resume_reading()

    def throw_away(self, data: bytes) -> None:
        """Take note of what came after the answer."""
        self._left -= len(data)
        if self._left <= 0:
            self._transport.close()

    def forget(self) -> None:
        """Let go of whoever is asked: the connection is lost."""
        self._linger = None
