"""Attacks that reporters ran against the server, over sockets: each has a bound now."""

from __future__ import annotations

import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from captioner.captioner import Captioner
from captioner_serving.decoding import fair_queue
from captioner_serving.server import api as routes
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.links import WebPhoto
from tests.process_tree import children, seconds
from tests.serving.server.conftest import SAMPLES, Server
from tests.serving.server.running import serving, until
from tests.serving.server.test_life import metric
from tests.web import Handler, hosting

pytestmark = pytest.mark.slow

PHOTO = (SAMPLES / "coffee.jpg").read_bytes()


def test_a_client_that_leaves_stops_its_drawing(server: Server) -> None:
    noise = Image.frombytes("RGB", (2500, 2400), os.urandom(2500 * 2400 * 3))
    noise.save(buffer := io.BytesIO(), "WEBP", lossless=True, quality=0, method=0)
    photo = buffer.getvalue()  # 18 MB, and many frames to draw: seconds of work
    fields = httpx.Request(
        "POST", f"{server.url}/api/animation", files={"image": ("x.webp", photo)}
    )
    where = urlsplit(server.url)
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.headers.items())
    before = set(children(server.process.pid))
    with server.client() as client, socket.create_connection((where.hostname, where.port)) as peer:
        captioned = metric(client, "captioner_captions_total")
        peer.sendall(f"POST /api/animation HTTP/1.1\r\n{head}\r\n".encode() + fields.read())
        assert until(lambda: metric(client, "captioner_captions_total") > captioned)
        worked = seconds(before)
        assert until(lambda: seconds(before) > worked + 0.1)  # it is drawn
    # The process that drew is killed, and there is a fresh one for the next photo.
    assert until(lambda: set(children(server.process.pid)) != before, 15)
    with server.client() as client:
        assert client.post("/api/caption", files={"image": PHOTO}).status_code == 200


class Hosts(Handler):
    """Hosts of photos: one that is slow once and then silent, two that lead elsewhere, and one."""

    asked, open = 0, threading.Event()

    def do_GET(self) -> None:  # noqa: N802
        if self.path == "/slow":
            Hosts.asked += 1
            Hosts.open.wait(1 if Hosts.asked == 1 else 60)
        if self.path in ("/file", "/round"):
            self.send_response(302)
            self.send_header("Location", {"/file": "file:///etc/passwd"}.get(self.path, "/round"))
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PHOTO)


@pytest.fixture
def web() -> Iterator[str]:
    with hosting(Hosts) as address:
        yield address


@pytest.fixture
def fetching(saved_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(routes, "WebPhoto", partial(WebPhoto, trusted_host="127.0.0.1"))
    captioner = Captioner.from_pretrained(saved_tiny)
    with serving(captioner, ServerConfig(allow_urls=True)) as url:
        yield url


def test_a_slow_host_does_not_block_other_photos(
    fetching: str, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_queue, "_HEAVY_USE", 0.5)  # seconds of work, which are ten

    def ask(address: str, path: str, done: list[int]) -> None:
        transport = httpx.HTTPTransport(local_address=address)
        with httpx.Client(base_url=fetching, transport=transport, timeout=300) as client:
            answer = client.post("/api/caption", files={"image_url": (None, f"{web}/{path}")})
            done.append(answer.status_code)

    slow: list[int] = []
    quick: list[int] = []
    threads = [
        threading.Thread(target=ask, args=("127.0.0.2", "slow", slow), daemon=True)
        for _ in range(18)
    ]
    for thread in threads:
        thread.start()
    assert until(lambda: slow)  # the attacker has taken a second
    ask("127.0.0.3", "quick", quick)
    assert quick == [200] and len(slow) == 1
    Hosts.open.set()
    for thread in threads:
        thread.join()


def test_an_address_that_cannot_be_fetched_has_the_right_reason(fetching: str, web: str) -> None:
    with httpx.Client(base_url=fetching, timeout=300) as client:
        for address, said in {
            "http://host:99999/": "the host name or port is invalid",
            f"http://{'a' * 80}.example/": "the host name or port is invalid",
            "http://[::1/": "the host name or port is invalid",
            f"{web}/round": "too many redirects",
            f"{web}/file": "redirects to a URL that is not http or https",
            "http://10.0.0.1/": "it leads to a private address",
            "http://no.such.host.invalid/": "the host is unknown",
            "http://127.0.0.1:9/": "the server does not answer",
        }.items():
            answer = client.post("/api/caption", files={"image_url": (None, address)})
            assert answer.status_code == 422, address
            assert said in answer.json()["detail"], address


def test_two_checkpoints_of_one_name_are_named_by_their_paths(
    start: Callable[..., Server], saved_tiny: Path, tmp_path: Path
) -> None:
    (other := tmp_path / "other.safetensors").write_bytes(saved_tiny.read_bytes())
    server = start("--checkpoint", saved_tiny, "--checkpoint", other)
    with server.client() as client:
        for name in (str(saved_tiny), str(other)):
            answer = client.post("/api/caption", files={"image": PHOTO}, data={"model": name})
            assert answer.json()["records"][0]["model"]["name"] == name
            assert client.get(f"/v1/models/{name}").json()["id"] == name
