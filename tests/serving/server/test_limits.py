"""Requests that take much memory or time; each is limited."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from captioner.captioner import Captioner
from captioner_serving.server import bodies
from captioner_serving.server.config import ServerConfig
from tests.captioner.pictures import encode, png
from tests.process_tree import children, seconds
from tests.serving.server.conftest import Server
from tests.serving.server.running import serving, until
from tests.serving.server.test_api import jpeg
from tests.serving.server.test_life import metric

pytestmark = pytest.mark.slow

MEGABYTE = 1_000_000
PATIENCE = 1.0


@pytest.fixture(scope="module")
def small(saved_tiny: Path) -> Iterator[str]:
    """A server that takes on little, so that little is enough to attack it."""
    config = ServerConfig(max_upload=MEGABYTE, max_connections=40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_SECONDS", PATIENCE)
        with serving(Captioner.from_pretrained(saved_tiny), config) as url:
            yield url


@pytest.fixture
def client(small: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=small, timeout=300) as made:
        yield made


def connect(url: str, data: bytes = b"", size: int | None = None) -> socket.socket:
    """Connect to a server of this machine, and send data; `size`: bytes of the receive buffer."""
    peer = socket.socket()
    if size is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    peer.settimeout(300)
    peer.connect(("127.0.0.1", urlsplit(url).port))
    peer.sendall(data)
    return peer


def head(length: int) -> bytes:
    return (
        "POST /api/caption HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {length}\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="image"; filename="x.jpg"\r\n\r\n'
    ).encode()


def is_answered(client: httpx.Client) -> bool:
    return client.post("/api/caption", files={"image": jpeg()}).status_code == 200


def test_stalled_uploads_are_counted_bounded_and_given_up(small: str, client: httpx.Client) -> None:
    with ExitStack() as stack:
        stalled = [
            stack.enter_context(connect(small, head(MEGABYTE) + bytes(400_000))) for _ in range(30)
        ]
        assert until(lambda: metric(client, "captioner_body_bytes") > MEGABYTE)
        held = [metric(client, "captioner_body_bytes") for _ in range(20)]
        assert max(held) <= 10 * MEGABYTE  # of 12 that were sent
        statuses = [peer.recv(20)[9:12] for peer in stalled]
        assert set(statuses) == {b"408", b"503"}
    assert until(lambda: metric(client, "captioner_body_bytes") == 0)
    assert is_answered(client)


def test_a_sender_of_50_kilobytes_a_second_is_not_given_up(small: str) -> None:
    start, tail = head(0).partition(b"\r\n\r\n")[2] + bytes(500_000), b"\r\n--b--\r\n"
    heading = head(len(start) + len(tail)).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    with connect(small, heading + start) as peer:
        time.sleep(PATIENCE + 0.5)
        peer.sendall(tail)
        assert peer.recv(20)[9:12] == b"415"  # zeros are no photo


def test_over_the_connections_is_503(small: str, client: httpx.Client) -> None:
    assert is_answered(client)
    with ExitStack() as stack:
        for _ in range(45):
            stack.enter_context(connect(small))
        assert until(lambda: client.get("/api/health").status_code == 503)
    assert until(lambda: client.get("/api/health").status_code == 200)


def test_a_request_with_two_lengths_is_refused(small: str) -> None:
    """A proxy may have used the other length (request smuggling)."""
    request = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    with connect(small, request) as peer:
        answer = b"".join(iter(lambda: peer.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    assert b"connection: close" in answer.lower() and answer.endswith(b"}")


def many_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    image = Image.new("RGB", (2000, 2000), "teal")
    data = encode(image, "JPEG", progressive=True, quality=50)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + b"\xff\xd9"


def huge_tile() -> bytes:
    """A TIFF of 16 x 16 pixels in one tile of 32768 x 65504."""
    tags = [
        (256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1), (322, 32768), (323, 65504),
        (324, 8), (325, 20),
    ]  # fmt: skip
    data = zlib.compress(bytes(100)).ljust(20, b"\0")
    entries = b"".join(
        tag.to_bytes(2, "little") + (4).to_bytes(2, "little") + (1).to_bytes(4, "little")
        + value.to_bytes(4, "little") for tag, value in tags
    )  # fmt: skip
    directory = len(tags).to_bytes(2, "little") + entries + bytes(4)
    return b"II*\0" + (28).to_bytes(4, "little") + data + directory


def test_slow_photos_do_not_block_others(server: Server) -> None:
    slow = png(9_990, 4_000, bytes(9_990 * 3 + 1) * 4_000)
    done: list[int] = []

    def attack() -> None:
        with server.client() as client:
            done.append(client.post("/api/caption", files={"image": slow}).status_code)

    threads = [threading.Thread(target=attack) for _ in range(2)]
    worked = {decoder: seconds([decoder]) for decoder in children(server.process.pid)}
    busy = lambda: [pid for pid in worked if seconds([pid]) > worked[pid] + 0.05]  # noqa: E731
    for thread in threads:
        thread.start()
    assert until(lambda: len(busy()) == 2)
    attacked = busy()
    for decoder in attacked:
        os.kill(decoder, signal.SIGSTOP)  # slow on any machine
    try:
        with server.client() as client:
            assert all(is_answered(client) for _ in range(3))
        before = len(done)
    finally:
        for decoder in attacked:
            os.kill(decoder, signal.SIGCONT)
    for thread in threads:
        thread.join()
    assert before == 0 and len(done) == 2
