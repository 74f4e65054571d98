"""Connections that say nothing: uvicorn's protocol with a deadline for the head of a request.

uvicorn waits for ever for a request to be complete in its head, and for a body that nobody is
waiting for. Here either has a deadline; and when there are more connections than the server takes,
the one that has been silent longest is closed for the new one.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from captioner_serving.server.config import ServerConfig
from captioner_serving.server.problems import RequestError, problem

__all__ = ["make_protocol"]


def make_protocol(config: ServerConfig) -> type[asyncio.Protocol]:
    """The protocol of a server's connections."""
    waiting: WeakKeyDictionary[PatientProtocol, asyncio.TimerHandle] = WeakKeyDictionary()
    # Those with a body on its way, the one that has been silent longest first.
    sending: WeakKeyDictionary[PatientProtocol, None] = WeakKeyDictionary()

    class PatientProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > config.max_connections:
                oldest = next(iter(waiting), None) or next(iter(sending), None)
                if oldest is not None:
                    oldest._unwatch()  # it is lost a little later; the next takes another
                    sending.pop(oldest, None)
                    oldest.transport.abort()
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._unwatch()
            sending.pop(self, None)

        def send_400_response(self, msg: str) -> None:  # noqa: ARG002
            """Answer what is not HTTP in the form of all errors."""
            detail = "this is not an HTTP request that can be read: see RFC 9112, or use a library"
            answer = problem(RequestError(detail))
            headers = [*answer.raw_headers, (b"connection", b"close")]
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _watch(self) -> None:
            """Start the clock when a request is awaited, stop it when one is there."""
            sending.pop(self, None)
            if self.cycle is not None and not self.cycle.response_complete:
                self._unwatch()
                if self.cycle.more_body:
                    sending[self] = None
            elif self not in waiting and not self.transport.is_closing():
                waiting[self] = self.loop.call_later(config.patience, self.transport.abort)

        def _unwatch(self) -> None:
            timer = waiting.pop(self, None)
            if timer is not None:
                timer.cancel()

    return PatientProtocol
