"""Connections that say nothing, or do not listen: uvicorn's protocol with deadlines.

uvicorn waits for ever for a request to be complete in its head, for a body that nobody is waiting
for, and for a client to take its answer. Here each has a deadline; and when there are more
connections than the server takes, the one that has been silent longest is closed for the new one.
A connection that is closed before its request was read lingers (lingering.py), and is as patient.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import ClassVar, cast
from weakref import WeakKeyDictionary

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from captioner_serving.server.config import SLOWEST, ServerConfig
from captioner_serving.server.lingering import ClosingConnection, LingeringTransport
from captioner_serving.server.problems import RequestError, problem

__all__ = ["FULL", "count_owed", "make_protocol"]

FULL = "captioner.full"
"""In the state of a request: it came when all connections were taken, and is to be refused."""


class _PatientProtocol(H11Protocol):
    """A connection; those of one server share what `make_protocol` gives their class."""

    settings: ClassVar[ServerConfig]
    # Those that are closed if nothing comes, the one that has been silent longest first.
    waiting: ClassVar[WeakKeyDictionary[_PatientProtocol, asyncio.TimerHandle]]
    # Those with a body on its way, in the same order.
    sending: ClassVar[WeakKeyDictionary[_PatientProtocol, None]]
    allowance: float  # seconds to take an answer
    paused = math.inf  # since when it is not taken

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.conn = ClosingConnection(h11.SERVER)
        self.closing = LingeringTransport(transport, self._linger)
        super().connection_made(cast(asyncio.Transport, self.closing))
        if len(self.connections) > self.settings.max_connections:
            oldest = next(iter(self.waiting), None) or next(iter(self.sending), None)
            if oldest is None:
                self.app_state = {**self.app_state, FULL: True}
            else:
                oldest._unwatch()  # it is lost a little later; the next takes another
                self.sending.pop(oldest, None)
                oldest.transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self.closing.lingering:
            self.closing.throw_away(data)
            return
        if self.conn.their_state is h11.MUST_CLOSE:
            return  # behind a request that said it was the last
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.allowance = self.settings.patience
        self.paused = math.inf  # what is left of this answer is not for the next one to pay
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
        self.allowance -= max(0.0, self.loop.time() - self.paused)
        if not self.closing.lingering:
            self._unwatch()
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closing.forget()
        self._unwatch()
        self.sending.pop(self, None)

    def owes(self) -> bool:
        """Whether its client waits for an answer, or for a part of it."""
        if self.closing.lingering:
            return False
        busy = self.cycle is not None and not self.cycle.response_complete
        return busy or self.transport.get_write_buffer_size() > 0

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: the request is answered, and told, as if it asked for no upgrade."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Answer what is not HTTP in the form of all errors, unless there is an answer already."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        detail = "this is not an HTTP request that can be read: see RFC 9112, or use a library"
        answer = problem(RequestError(detail))
        headers = [*answer.raw_headers, (b"connection", b"close")]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (response, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        """Answer what is under way; whoever has an answer has read it by now."""
        super().shutdown()
        if self.closing.lingering:
            self.transport.abort()

    def _linger(self) -> bool:
        """Whether a request is on its way; what is being made for it is made for nobody."""
        if self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.flow.resume_writing()
        self._unwatch()
        self.sending.pop(self, None)
        rest = self.transport.get_write_buffer_size() / SLOWEST
        self._give_up_after(self.settings.patience + rest)
        return True

    def _watch(self) -> None:
        """Start the clock when a request is awaited, stop it when one is there."""
        if self.closing.lingering:
            return
        self.sending.pop(self, None)
        if self.cycle is None or self.cycle.response_complete:
            # A transport that is closing may have a rest to send, and nobody who takes it.
            self._give_up_after(self.settings.patience)
        elif not self.flow.write_paused:
            self._unwatch()
            if self.cycle.more_body:
                self.sending[self] = None

    def _give_up_after(self, seconds: float) -> None:
        if self not in self.waiting:
            self.waiting[self] = self.loop.call_later(seconds, self.transport.abort)

    def _unwatch(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()


def count_owed(connections: Iterable[object]) -> int:
    """Count those whose client waits for an answer, or for a part of it."""
    ours = (each for each in connections if isinstance(each, _PatientProtocol))
    return sum(each.owes() for each in ours)


def make_protocol(config: ServerConfig) -> type[asyncio.Protocol]:
    """The protocol of a server's connections."""
    own = {
        "settings": config,
        "allowance": config.patience,
        "waiting": WeakKeyDictionary(),
        "sending": WeakKeyDictionary(),
    }
    return type("PatientProtocol", (_PatientProtocol,), own)
