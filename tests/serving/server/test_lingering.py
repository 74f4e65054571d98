"""Answers that come before their request is all there."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner_serving.server.batcher import BusyError
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.problems import CrossSiteError, problem
from tests.serving.server.running import running

PATIENCE = 1.0
UPLOAD = b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
CHUNKED = (
    b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n"
)
RESET = (ConnectionResetError, BrokenPipeError)


async def busy(scope: Scope, receive: Receive, send: Send) -> None:
    await problem(BusyError(5, "the queue is full"))(scope, receive, send)


async def forbidding(scope: Scope, receive: Receive, send: Send) -> None:
    await problem(CrossSiteError("go home"))(scope, receive, send)


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise ValueError("in the middle")


class Reading:
    """Reads its request, and then makes an answer that takes a while."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        while not self.heard or self.heard[-1].get("more_body"):
            self.heard.append(await receive())
        await asyncio.sleep(0.2)
        await problem(BusyError(5, "the queue is full"))(scope, receive, send)


@contextmanager
def connected(
    app: ASGIApp, said: list[str], *, patience: float = PATIENCE
) -> Iterator[socket.socket]:
    """A connection to a server of the test's own."""
    with (
        running(app, ServerConfig(patience=patience), said) as port,
        socket.create_connection(("127.0.0.1", port), timeout=300) as peer,
    ):
        yield peer


@pytest.fixture
def said() -> list[str]:
    return []


def read_all(peer: socket.socket) -> bytes:
    return b"".join(iter(lambda: peer.recv(4096), b""))


def is_cut_off(peer: socket.socket) -> bool:
    """Send a little of a photo now and then, until the server has had enough."""
    deadline = time.monotonic() + 300
    try:
        while time.monotonic() < deadline:
            peer.sendall(b"x")
            time.sleep(0.05)
    except RESET:
        return True
    return False


@pytest.mark.parametrize(("app", "status"), [(busy, b"503"), (forbidding, b"403")])
def test_a_photo_that_is_refused_before_it_is_read_resets_nothing(
    app: ASGIApp, status: bytes, said: list[str]
) -> None:
    with connected(app, said) as peer:
        peer.sendall(UPLOAD)
        begin = peer.recv(16, socket.MSG_PEEK)
        assert begin.startswith(b"HTTP/1.1 " + status)  # the answer has come
        for _ in range(10):  # and only now the photo, of which the server wants nothing
            peer.sendall(bytes(100_000))
            time.sleep(0.01)
        answer = read_all(peer)
    assert b"\r\nconnection: close\r\n" in answer.lower() and answer.endswith(b"}")


def test_a_request_that_is_all_there_keeps_its_connection(said: list[str]) -> None:
    with connected(forbidding, said) as peer:
        for _ in range(2):
            peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = peer.recv(4096)
            while not answer.endswith(b"}"):
                answer += peer.recv(4096)
            assert b"connection: close" not in answer.lower()


@pytest.mark.parametrize("app", [busy, failing])
def test_nobody_lingers_for_ever(app: ASGIApp, said: list[str]) -> None:
    with connected(app, said) as peer:
        peer.sendall(UPLOAD)
        read_all(peer)
        assert is_cut_off(peer)


def test_nobody_is_read_from_without_end(said: list[str]) -> None:
    with connected(busy, said, patience=30) as peer:
        peer.sendall(UPLOAD)
        assert peer.recv(16, socket.MSG_PEEK).startswith(b"HTTP/1.1 503")
        with pytest.raises(RESET):
            for _ in range(300):  # megabytes
                peer.sendall(bytes(1_000_000))


def test_a_request_that_breaks_while_it_is_in_work_is_over(
    said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = Reading()
    with connected(app, said) as peer:
        peer.sendall(CHUNKED)
        while not app.heard:
            time.sleep(0.01)
        peer.sendall(b"zz\r\n")
        assert read_all(peer).startswith(b"HTTP/1.1 400 ")
        time.sleep(0.4)  # the answer would have been ready now, for nobody
        assert is_cut_off(peer)
    assert app.heard[-1]["type"] == "http.disconnect"
    assert [record.getMessage() for record in caplog.records] == []


def test_what_stands_behind_the_last_request_is_nothing(said: list[str]) -> None:
    app = Reading()
    with connected(app, said) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        while not app.heard:
            time.sleep(0.01)
        peer.sendall(b"\r\n")  # RFC 9112, 2.2: some old programs do
        assert read_all(peer).endswith(b"}")
