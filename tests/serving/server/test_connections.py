"""Connections when all are taken, and clients that do not take their answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from captioner_serving.server.admission import Admission, _in_pieces
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.connections import count_owed, make_protocol
from captioner_serving.server.door import Door
from captioner_serving.server.log import AccessLog
from captioner_serving.server.metrics import Metrics
from captioner_serving.verbs.serve import _say
from tests.serving.server.running import running, until

PATIENCE = 1.0
ANSWER = 6_000_000  # bytes; more than the system keeps for a client that takes none


class Inside:
    """Behind the door: /metrics answers much, health never, everything else at once."""

    def __init__(self) -> None:
        self.waiting = 0
        self.over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response = PlainTextResponse("fine")
        self.waiting += 1
        try:
            if scope["path"] == "/api/health":
                await self.over.wait()
            elif scope["path"] != "/":
                answer = Response(bytes(ANSWER))
            await answer(scope, receive, send)
        finally:
            self.waiting -= 1


@pytest.fixture
def inside() -> Inside:
    return Inside()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def port(inside: Inside, said: list[str]) -> Iterator[int]:
    config = ServerConfig(max_connections=8, patience=PATIENCE)
    with running(inside, config, said) as number:
        yield number


def ask(port: int, path: str) -> socket.socket:
    """Send a request, and take nothing of the answer."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(300)
    peer.connect(("127.0.0.1", port))
    peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return peer


def test_one_connection_too_many_gets_a_problem(port: int, inside: Inside, said: list[str]) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(ask(port, "/api/health"))
        assert until(lambda: inside.waiting == 8)
        answer = httpx.get(f"http://127.0.0.1:{port}/", timeout=300)
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["connection"] == "close"
        assert answer.json()["type"] == "busy"
        assert until(lambda: said)  # told once the answer is out
        assert said == ["127.0.0.1 GET /: 503"]
    assert until(lambda: httpx.get(f"http://127.0.0.1:{port}/", timeout=300).status_code == 200)


@pytest.mark.parametrize("path", ["/metrics", "/page/captions/token/photo.jpg"])
def test_an_answer_that_nobody_takes_is_given_up(port: int, inside: Inside, path: str) -> None:
    with ask(port, path) as peer:
        started = time.monotonic()
        assert until(lambda: inside.waiting == 1)
        assert until(lambda: inside.waiting == 0)
        # What is not sent yet is in nobody's memory now; at 50 kB a second nothing was taken.
        assert time.monotonic() - started >= PATIENCE
        assert sum(iter(lambda: len(peer.recv(1 << 20)), 0)) < ANSWER


def test_answers_that_nobody_takes_keep_nobody_out(inside: Inside, said: list[str]) -> None:
    """Long before they are given up; those that have just asked are not yet known for it."""
    config = ServerConfig(max_connections=8, patience=600)
    with running(inside, config, said) as port, ExitStack() as stack:
        for _ in range(30):  # of the 8 that may be open
            stack.enter_context(ask(port, "/metrics"))
        assert until(lambda: inside.waiting == 8)
        once = f"http://127.0.0.1:{port}/"
        assert until(lambda: httpx.get(once, timeout=300).status_code == 200)


def test_an_answer_that_is_taken_slowly_is_taken_whole(port: int) -> None:
    with ask(port, "/metrics") as peer:
        total, started = 0, time.monotonic()
        while total < ANSWER:
            total += len(peer.recv(1 << 16))
            time.sleep(max(0.0, started + total / 2e6 - time.monotonic()))
    assert time.monotonic() - started > 2.5 * PATIENCE


def mocked(clock: Mock, transport: Mock) -> Any:
    """A connection whose socket and clock are the test's."""
    config = uvicorn.Config(Inside(), log_config=None)
    config.load()
    transport.is_closing.return_value = False
    transport.get_extra_info.return_value = None
    protocol = make_protocol(ServerConfig(patience=PATIENCE))(
        config, uvicorn.server.ServerState(), {}, _loop=clock
    )
    protocol.connection_made(transport)
    return protocol


def test_a_slow_end_of_one_answer_is_not_on_the_account_of_the_next() -> None:
    """Two answers on one connection; between pause and resume there is a last piece to take."""
    clock, timers, transport = Mock(), [], Mock()
    clock.call_later = lambda seconds, _: timers.append(seconds) or Mock()
    clock.time.return_value = 0.0
    transport.get_write_buffer_size.return_value = 100_000
    protocol = mocked(clock, transport)
    allowed = []
    for start in (0.0, 100.0):
        clock.time.return_value = start
        protocol._unwatch()  # as a request does
        protocol.pause_writing()
        allowed.append(timers[-1])
        protocol.on_response_complete()
        clock.time.return_value = start + 2.9
        protocol.resume_writing()
    assert allowed == [PATIENCE + 100_000 / 50_000] * 2


def test_an_answer_is_owed_until_its_last_byte_is_out() -> None:
    transport = Mock()
    transport.get_write_buffer_size.return_value = 0
    protocols = [mocked(Mock(), transport) for _ in range(3)]
    assert count_owed(protocols) == 0
    protocols[0].cycle = Mock(response_complete=False)
    assert count_owed(protocols) == 1
    protocols[0].cycle.response_complete = True
    assert count_owed(protocols) == 0
    transport.get_write_buffer_size.return_value = 5
    assert count_owed(protocols) == 3
    protocols[1].closing.lingering = True  # it has been refused
    assert count_owed([*protocols, object()]) == 2


def test_a_body_that_breaks_behind_its_answer_ends_the_connection(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=300) as peer:
        peer.sendall(
            b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        answer = b""
        while not answer.endswith(b"}"):
            piece = peer.recv(4096)
            assert piece
            answer += piece
        assert answer.startswith(b"HTTP/1.1 405 ")
        peer.sendall(b"zz\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(4096) == b""
    assert [record.name for record in caplog.records if record.exc_info] == []


def test_a_request_that_tells_its_length_in_two_ways_is_the_last(port: int, inside: Inside) -> None:
    """A proxy may have believed the other one: what follows is not what it took it for."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        peer.sendall(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        answer = b"".join(iter(lambda: peer.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower() and answer.endswith(b"}")


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 200_000])
def test_a_large_answer_goes_out_whole_in_pieces(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    message = {"type": "http.response.body", "body": body[:size]}
    asyncio.run(_in_pieces(send)(message))  # type: ignore[arg-type]
    assert b"".join(one["body"] for one in sent) == body[:size]
    assert [len(one["body"]) for one in sent[:-1]] == [65_536] * (len(sent) - 1)
    assert len(sent[-1]["body"]) <= 65_536
    more = [one.get("more_body", False) for one in sent]
    assert more == [True] * (len(sent) - 1) + [False]


def test_one_client_wants_only_so_many_pictures_at_once() -> None:
    first, other = asyncio.run(_pictures_at_once({"192.0.2.1": 20}))
    assert sorted(first) == [200] * 16 + [503] * 4 and other == 200


def test_clients_who_want_many_pictures_leave_places_for_others() -> None:
    first, other = asyncio.run(_pictures_at_once({f"192.0.2.{n}": 16 for n in range(3, 8)}))
    assert sorted(first) == [200] * 46 + [503] * 34  # 44, and one each for the last two clients
    assert other == 200


async def _pictures_at_once(wanted: dict[str, int]) -> tuple[list[int], int]:
    """Want so many pictures for each address at once, and then one for another: the statuses."""
    taken = asyncio.Event()

    async def drawing(scope: Scope, receive: Receive, send: Send) -> None:
        await taken.wait()
        await PlainTextResponse("a picture")(scope, receive, send)

    door = Door(Admission(drawing, ServerConfig(), Metrics()), root_path="", trusted_proxies=[])

    async def want(address: str) -> int:
        transport = httpx.ASGITransport(door, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            return (await client.get("/page/captions/token/photo.jpg")).status_code

    first = [asyncio.create_task(want(one)) for one, count in wanted.items() for _ in range(count)]
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    other = asyncio.create_task(want("192.0.2.1" if len(wanted) > 1 else "192.0.2.2"))
    await asyncio.sleep(0)
    taken.set()
    return await asyncio.gather(*first), await other


def test_a_full_disk_beneath_the_logs_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w")  # noqa: PTH123, SIM115 - that it cannot be flushed is the point
    monkeypatch.setattr("sys.stderr", full)
    log = AccessLog(PlainTextResponse("fine"), Metrics(), full, _say)

    async def status() -> int:
        transport = httpx.ASGITransport(Door(log, root_path="", trusted_proxies=[]))
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            return (await client.get("/")).status_code

    try:
        assert asyncio.run(status()) == 200
        _say("captioned a photo")
    finally:
        with contextlib.suppress(OSError):
            full.close()
