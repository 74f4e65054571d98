"""Two servers behind nginx with the configuration in examples/deploy."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from tests.captioner.pictures import encode
from tests.serving.server.conftest import SAMPLES, Server, serve
from tests.serving.server.proxy import nginx
from tests.serving.server.running import client_at, until
from tests.serving.server.test_api import jpeg
from tests.serving.server.test_limits import connect, head

pytestmark = [pytest.mark.needs("nginx"), pytest.mark.slow]
PATIENCE = 2


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, saved_tiny: Path
) -> Iterator[tuple[Server, Server]]:
    options = ("--checkpoint", saved_tiny, "--root-path", "/captioner", "--log", "-")
    options = (*options, "--trusted-proxy", "127.0.0.1", "--max-upload", "5MB")
    options = (*options, "--frame-ancestor", "https://example.org")
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(serve(tmp_path_factory.mktemp(f"server{number}"), *options))
            for number in range(2)
        )
        yield one, two


@pytest.fixture(scope="module")
def url(servers: tuple[Server, Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("nginx") / "run"
    with nginx(folder, *(server.url for server in servers), patience=PATIENCE) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=300) as made:
        yield made


def answers(server: Server, path: str) -> int:
    return sum(f'"path": "{path}", "status": 200' in line for line in server.lines)


def test_the_page_and_its_parts_are_found_below_the_prefix(client: httpx.Client) -> None:
    page = client.get("")
    assert page.status_code == 200 and "/captioner" in page.text
    assert "https://example.org" in page.headers["content-security-policy"]
    assert client.get("config").json()["root"] == str(client.base_url).rstrip("/")
    assert client.get("page/static/page.js").status_code == 200
    assert client.get("page/samples/coffee").content == (SAMPLES / "coffee.jpg").read_bytes()
    assert "/captioner/static-offline-docs/" in client.get("docs").text
    assert client.get(str(client.base_url)[:-1], follow_redirects=True).status_code == 200


def test_a_post_of_the_page_itself_is_of_this_site(client: httpx.Client) -> None:
    where = urlsplit(str(client.base_url))
    for origin, status in ((f"http://{where.netloc}", 200), ("http://localhost:1", 403)):
        headers = {"Origin": origin}
        answer = client.post("api/caption", files={"image": jpeg()}, headers=headers)
        assert answer.status_code == status


def test_servers_behind_a_proxy_get_the_real_client_address(
    client: httpx.Client, servers: tuple[Server, Server]
) -> None:
    with client_at(client.base_url, "127.0.0.9") as other:
        other.get("api/health", headers={"X-Forwarded-For": "203.0.113.9"})
    lines = lambda: "".join(line for server in servers for line in server.lines)  # noqa: E731
    assert until(lambda: '"client": "127.0.0.9"' in lines())
    assert "203.0.113.9" not in lines()


def test_gradio_client_comes_back_to_the_same_server(url: str) -> None:
    import gradio_client

    client = gradio_client.Client(url, verbose=False, analytics_enabled=False)
    try:
        for _ in range(3):
            photo = gradio_client.handle_file(SAMPLES / "coffee.jpg")
            assert client.predict(photo, api_name="/caption")["words"]
    finally:
        client.close()


def test_slow_heads_bodies_and_silent_connections_are_given_up(client: httpx.Client) -> None:
    url = str(client.base_url)
    body = head(1_000_000).replace(b"/api", b"/captioner/api")
    started = time.monotonic()
    with ExitStack() as stack:
        peers = [
            stack.enter_context(connect(url, data))
            for data in (b"GET / HTTP/1.1\r\nHost: local", body + bytes(1000), b"")
        ]
        for _ in range(20):  # they keep nobody out meanwhile
            assert client.get("api/health").status_code == 200
        for peer in peers:
            with suppress(ConnectionResetError):
                assert peer.recv(4096)[:12] in (b"", b"HTTP/1.1 408")
        assert time.monotonic() - started > PATIENCE - 0.5


def test_an_early_refusal_does_not_reset_the_connection(client: httpx.Client) -> None:
    for size, kind in ((8_000_000, "upload-too-large"), (30_000_000, None)):
        answer = client.post("api/caption", files={"image": bytes(size)})
        assert answer.status_code == 413
        assert kind is None or answer.json()["type"] == kind


def test_an_answer_that_is_not_read_does_not_block_the_server(
    client: httpx.Client, servers: tuple[Server, Server]
) -> None:
    photo = encode(Image.effect_noise((2400, 2400), 90).convert("RGB"), "JPEG")
    request = client.build_request("POST", "api/overlay", files={"image": photo})
    start = f"POST /captioner/api/overlay HTTP/1.1\r\nHost: {request.url.netloc.decode()}\r\n"
    names = ("content-type", "content-length")
    lines = "".join(f"{name}: {request.headers[name]}\r\n" for name in names)
    before = sum(answers(server, "/api/overlay") for server in servers)
    with connect(str(client.base_url), f"{start}{lines}\r\n".encode() + request.read(), 4096):
        done = lambda: sum(answers(server, "/api/overlay") for server in servers)  # noqa: E731
        assert until(lambda: done() == before + 1)
    for server in servers:
        assert all(re.search(r'"bytes": 0,', line) is None for line in server.lines)


def test_connections_per_address_are_limited(client: httpx.Client) -> None:
    unfinished = head(1_000_000).replace(b"/api", b"/captioner/api")

    def is_refused(peer: socket.socket) -> bool:
        with suppress(ConnectionResetError):  # of an upload that takes too long
            return peer.recv(12, socket.MSG_PEEK)[9:12] == b"503"
        return False

    with ExitStack() as stack:
        peers = [stack.enter_context(connect(str(client.base_url), unfinished)) for _ in range(80)]
        with client_at(client.base_url, "127.0.0.9") as other:
            assert other.get("api/health").status_code == 200
        assert until(lambda: sum(map(is_refused, select.select(peers, [], [], 0)[0])) >= 15)
