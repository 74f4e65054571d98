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
from tests.serving.server.running import Clock, serving, until
from tests.serving.server.test_endpoint import USUAL, call, file_data, result, upload
from tests.serving.server.test_life import metric
from tests.web import Handler, hosting

pytestmark = pytest.mark.slow

PHOTO = (SAMPLES / "coffee.jpg").read_bytes()


def at(server: Server, address: str) -> httpx.Client:
    """A client with a separate address."""
    return server.client(transport=httpx.HTTPTransport(local_address=address))


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


def test_uploads_are_limited_by_address_and_in_total(start: Callable[..., Server]) -> None:
    server = start("--max-upload", "1MB", "--max-bodies", "2MB", "--upload-ttl", 1.5)

    def send(client: httpx.Client) -> int:
        files = {"files": ("x.jpg", os.urandom(480_000))}
        answer = client.post("/gradio_api/upload", files=files)
        if answer.status_code == 503:
            assert answer.headers["Retry-After"] == "60"
            assert "recent uploads fill the space" in answer.json()["detail"]
        return answer.status_code

    third = at(server, "127.0.0.3")
    with at(server, "127.0.0.1") as greedy, at(server, "127.0.0.2") as modest, third:
        assert [send(greedy) for _ in range(6)] == [200, 200, 503, 503, 503, 503]
        assert [send(modest) for _ in range(2)] == [200, 200]
        assert send(third) == 503
        assert sum(path.stat().st_size for path in server.uploads()) < 3_000_000
        assert until(lambda: not server.uploads(), 30)  # those that broke off, too
        assert until(lambda: send(greedy) == 200, 30)


def test_one_upload_may_be_larger_than_half_of_the_space(start: Callable[..., Server]) -> None:
    server = start("--max-upload", "1.5MB", "--max-bodies", "2MB")
    with server.client() as client:
        files = {"files": ("x.jpg", os.urandom(1_300_000))}
        assert client.post("/gradio_api/upload", files=files).status_code == 200


@pytest.fixture
def few(saved_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[httpx.Client, Clock]]:
    """A server with room for four unread results of one client, and a clock to put forward."""
    clock = Clock(monkeypatch)
    captioner = Captioner.from_pretrained(saved_tiny)
    with (
        serving(captioner, ServerConfig(queue=4)) as url,
        httpx.Client(base_url=url, timeout=300) as client,
    ):
        yield client, clock


def test_a_call_that_gradio_refuses_counts_as_unread_for_a_minute(
    few: tuple[httpx.Client, Clock],
) -> None:
    client, clock = few
    image = file_data(upload(client))
    wrong = {"trigger_id": "not a number"}
    assert [call(client, image, *USUAL, **wrong).status_code for _ in range(4)] == [400] * 4
    assert call(client, image, *USUAL).status_code == 503
    clock.ahead += 61
    assert call(client, image, *USUAL).status_code == 200


def test_unread_results_are_limited_and_dropped_after_a_minute(
    few: tuple[httpx.Client, Clock],
) -> None:
    client, clock = few
    image = file_data(upload(client))
    calls = [call(client, image, *USUAL) for _ in range(6)]
    assert [answer.status_code for answer in calls] == [200] * 4 + [503] * 2
    assert calls[4].headers["Retry-After"] == "60"
    assert "too many results are unread" in calls[4].json()["detail"]
    statuses = []
    for number in (2, 3, 4, 5):  # room for 16 of all clients
        transport = httpx.HTTPTransport(local_address=f"127.0.0.{number}")
        with httpx.Client(base_url=client.base_url, transport=transport, timeout=300) as other:
            statuses += [call(other, image, *USUAL).status_code for _ in range(4)]
    assert statuses == [200] * 12 + [503] * 4
    assert result(client, calls[0])["data"][0]["caption"]
    assert call(client, image, *USUAL).status_code == 200  # in the place of the one that was read
    assert call(client, image, *USUAL).status_code == 503
    clock.ahead += 61
    again = call(client, image, *USUAL)
    assert result(client, again)["data"][0]["caption"]
    query = {"session_hash": calls[1].extensions["session"]}
    answer = client.get("/gradio_api/queue/data", params=query)
    assert (answer.status_code, answer.json()["type"]) == (404, "no-such-session")


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
