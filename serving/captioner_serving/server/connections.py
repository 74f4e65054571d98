"""Connections that say nothing, or do not listen: uvicorn's protocol with deadlines.

uvicorn waits for ever for a request to be complete in its head, for a body that nobody is waiting
for, and for a client to take its answer. Here each has a deadline; and when there are more
connections than the server takes, the one that has been silent longest is closed for the new one.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from captioner_serving.server.config import SLOWEST, ServerConfig
from captioner_serving.server.problems import RequestError, problem

__all__ = ["FULL", "make_protocol"]

FULL = "captioner.full"
"""In the state of a request: it came when all connections were taken, and is to be refused."""


def make_protocol(config: ServerConfig) -> type[asyncio.Protocol]:
    """The protocol of a server's connections."""
    # Those that are closed if nothing comes, the one that has been silent longest first.
    waiting: WeakKeyDictionary[PatientProtocol, asyncio.TimerHandle] = WeakKeyDictionary()
    # Those with a body on its way, in the same order.
    sending: WeakKeyDictionary[PatientProtocol, None] = WeakKeyDictionary()

    class PatientProtocol(H11Protocol):
        allowance, paused = config.patience, 0.0  # to take an answer; since when it is not taken

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > config.max_connections:
                oldest = next(iter(waiting), None) or next(iter(sending), None)
                if oldest is None:
                    self.app_state = {**self.app_state, FULL: True}
                else:
                    oldest._unwatch()  # it is lost a little later; the next takes another
                    sending.pop(oldest, None)
                    oldest.transport.abort()
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.allowance = config.patience
            self._watch()

        def pause_writing(self) -> None:
            """Start the clock: the client does not take its answer as fast as it is made."""
            super().pause_writing()
            self.paused = self.loop.time()
            self.allowance += self.transport.get_write_buffer_size() / SLOWEST
            self._give_up_after(self.allowance)

        def resume_writing(self) -> None:
            """Stop the clock: it has taken most of what there was."""
            super().resume_writing()
            self.allowance -= self.loop.time() - self.paused
            self._unwatch()
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
            if self.cycle is None or self.cycle.response_complete:
                # A transport that is closing may have a rest to send, and nobody who takes it.
                self._give_up_after(config.patience)
            elif not self.flow.write_paused:
                self._unwatch()
                if self.cycle.more_body:
                    sending[self] = None

        def _give_up_after(self, seconds: float) -> None:
            if self not in waiting:
                waiting[self] = self.loop.call_later(seconds, self.transport.abort)

        def _unwatch(self) -> None:
            timer = waiting.pop(self, None)
            if timer is not None:
                timer.cancel()

    return PatientProtocol
