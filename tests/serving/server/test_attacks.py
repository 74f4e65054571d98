"""What a stranger can send to take memory, disk, time or connections; each has a bound."""

from __future__ import annotations

import io
import itertools
import json
import re
import secrets
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from captioner_serving.server.batcher import BusyError
from captioner_serving.server.unread import UnreadResults
from tests.serving.server.conftest import Server, serve
from tests.serving.server.test_api import jpeg
from tests.serving.server.test_bad_uploads import png, resident
from tests.serving.server.test_guard import call, file_data, function, result, upload
from tests.serving.server.test_life import metric

MEGABYTE = 1_000_000
PATIENCE = 2.0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, saved_tiny: Path) -> Iterator[Server]:
    """A server that takes on little, so that little is enough to attack it."""
    options = {
        "--max-upload": "1MB", "--max-bodies": "4MB", "--max-store": "3MB",
        "--max-connections": 40, "--patience": PATIENCE, "--log": "-",
    }  # fmt: skip
    arguments = [part for pair in options.items() for part in pair]
    folder = tmp_path_factory.mktemp("small")
    with serve(folder, "--checkpoint", saved_tiny, *arguments) as running:
        yield running


@pytest.fixture
def client(small: Server) -> Iterator[httpx.Client]:
    with small.client() as made:
        made.get("/")
        yield made


def connect(server: Server, data: bytes = b"") -> socket.socket:
    where = urlsplit(server.url)
    peer = socket.create_connection((where.hostname, where.port), timeout=300)
    peer.sendall(data)
    return peer


def head(length: int) -> bytes:
    return (
        "POST /api/caption HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {length}\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="image"; filename="x.jpg"\r\n\r\n'
    ).encode()


def waits(true: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_answered(client: httpx.Client) -> bool:
    return client.post("/api/caption", files={"image": jpeg()}).status_code == 200


def test_stalled_uploads_are_counted_bounded_and_given_up(
    small: Server, client: httpx.Client
) -> None:
    with ExitStack() as stack:
        stalled = [
            stack.enter_context(connect(small, head(MEGABYTE) + bytes(200_000))) for _ in range(30)
        ]
        waits(lambda: metric(client, "captioner_body_bytes") > 2 * MEGABYTE)
        held = [metric(client, "captioner_body_bytes") for _ in range(20)]
        assert max(held) <= 4 * MEGABYTE  # of 6 that were sent
        # There is no room left; the upload that is silent longest makes it.
        photo = io.BytesIO()
        Image.effect_noise((900, 900), 90).save(photo, "JPEG", quality=90)
        assert client.post("/api/caption", files={"image": photo.getvalue()}).status_code == 200
        statuses = [peer.recv(20)[9:12] for peer in stalled]
        assert set(statuses) <= {b"408", b"503"} and b"503" in statuses
    assert metric(client, "captioner_body_bytes") == 0


def test_a_slow_sender_is_given_up(small: Server, client: httpx.Client) -> None:
    with connect(small, head(MEGABYTE)) as peer:
        started = time.monotonic()
        answer = peer.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"application/problem+json" in answer and b"connection: close" in answer.lower()
        assert time.monotonic() - started > PATIENCE - 0.5


def test_a_head_that_never_ends_is_given_up(small: Server) -> None:
    with (
        connect(small, b"GET / HTTP/1.1\r\nHost: local") as peer,
        pytest.raises(ConnectionResetError),
    ):
        if peer.recv(10) == b"":
            raise ConnectionResetError


def test_silent_connections_keep_nobody_out(small: Server) -> None:
    with ExitStack() as stack:
        for _ in range(120):
            stack.enter_context(connect(small))
        with small.client() as client:
            assert is_answered(client)


def test_bodies_that_never_come_keep_nobody_out(small: Server) -> None:
    with ExitStack() as stack:
        for _ in range(60):  # of the 40 that may be open
            stack.enter_context(connect(small, head(MEGABYTE)))
        with small.client() as client:
            assert is_answered(client)


def test_streams_keep_nobody_out(small: Server) -> None:
    request = "GET /gradio_api/heartbeat/{} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        peers = [
            stack.enter_context(connect(small, request.format(secrets.token_hex(5)).encode()))
            for _ in range(30)
        ]
        statuses = [peer.recv(20)[9:12] for peer in peers]
        assert statuses.count(b"200") == 10 and statuses.count(b"503") == 20
        with small.client() as client:
            assert is_answered(client)


def test_the_store_has_a_total(small: Server, client: httpx.Client) -> None:
    def size() -> int:
        return sum(path.stat().st_size for path in small.uploads())

    used = upload(client)  # a photo that somebody looks at goes last
    session = secrets.token_hex(5)
    assert call(client, file_data(used), session).status_code == 200
    result(client, session)
    for _ in range(12):
        files = {"files": ("x.jpg", secrets.token_bytes(900_000))}
        assert client.post("/gradio_api/upload", files=files).status_code == 200
        assert size() <= 3 * MEGABYTE
    assert size() > 1.5 * MEGABYTE
    assert Path(used).is_file()


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("data", "status"),
    [
        ([[1, 2], 1, 1, False], 400),
        ([nested(60), 1, 1, False], 400),
        ([{"a": {"b": 1}}, 1, 1, False], 400),
        ([1] * 100, 400),
        (["x" * 20_000, 1, 1], 413),
        ([[[]] * 50_000, 1, 1], 413),
    ],
    ids=["list", "deep list", "object", "long", "large", "many lists"],
)
def test_calls_of_the_page_are_small_and_typed(
    client: httpx.Client, data: Any, status: int
) -> None:
    body = {"data": data, "fn_index": function(client), "session_hash": secrets.token_hex(5)}
    answer = client.post("/gradio_api/queue/join", content=json.dumps(body).encode())
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("index", [-1, 10_000, None])
def test_a_call_of_no_function_is_no_failure_of_the_server(
    client: httpx.Client, index: int | None
) -> None:
    body = {"data": [], "fn_index": index, "session_hash": "s"}
    answer = client.post("/gradio_api/queue/join", json=body)
    assert 400 <= answer.status_code < 500


def test_results_that_nobody_fetches_are_few(client: httpx.Client) -> None:
    session = secrets.token_hex(5)
    body = {"data": [None, 1, 1], "fn_index": function(client), "session_hash": session}
    answers = [client.post("/gradio_api/queue/join", json=body) for _ in range(40)]
    assert [answer.status_code for answer in answers] == [200] * 32 + [503] * 8
    assert (
        answers[-1].json()["type"] == "busy" and "fetch the results" in answers[-1].json()["detail"]
    )


def test_results_that_nobody_fetches_are_few_over_all_sessions() -> None:
    from gradio.utils import LRUCache  # gradio takes two seconds to import

    queue: Any = SimpleNamespace(
        pending_messages_per_session=LRUCache(2000),
        pending_event_ids_session={},
        event_ids_to_events={},
    )
    unread = UnreadResults(queue)
    calls = map(str, itertools.count())

    def call(session: str) -> None:
        unread.make_room(session)
        queue.pending_messages_per_session[session] = Mock()
        queue.pending_event_ids_session.setdefault(session, set()).add(next(calls))

    call("visitor")
    for number in range(640):
        call(f"attacker {number // 32}")
    waiting = queue.pending_event_ids_session
    assert sum(map(len, waiting.values())) <= 512
    assert queue.pending_messages_per_session.keys() == waiting.keys()
    # It is not the visitor who loses what there is, nor is anybody kept out.
    assert len(waiting["visitor"]) == 1
    call("another visitor")
    while sum(map(len, waiting.values())) < 512:
        call(f"late {next(calls)}")
    queue.event_ids_to_events = dict.fromkeys(set().union(*waiting.values()), Mock())
    with pytest.raises(BusyError, match="the calls under way"):
        call("another visitor")


def many_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    image = Image.new("RGB", (2000, 2000), "teal")
    image.save(buffer := io.BytesIO(), "JPEG", progressive=True, quality=50)
    data = buffer.getvalue()
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


@pytest.mark.parametrize(
    ("make", "said"),
    [(lambda: many_scans(300), r"pixels in \d+ scans"), (huge_tile, "tiles of 32768 x 65504")],
    ids=["scans", "tile"],
)
def test_an_image_that_takes_too_much_is_refused_from_its_header(
    client: httpx.Client, small: Server, make: Callable[[], bytes], said: str
) -> None:
    image, before = make(), resident(small)
    assert len(image) < MEGABYTE
    answer = client.post("/api/caption", files={"image": image})
    assert answer.status_code == 422
    assert re.search(said, answer.json()["detail"])  # and not: it takes more than 20 s
    assert resident(small) - before < 50_000  # kB


def test_nobody_waits_for_a_photo_that_takes_long(server: Server) -> None:
    """Three photos of 5 s each and more; ordinary ones beside them."""
    slow = png(9_990, 10_000, zlib.compress(bytes(9_990 * 3 + 1) * 10_000, 1))
    done: list[int] = []

    def attack() -> None:
        with server.client() as client:
            done.append(client.post("/api/caption", files={"image": slow}).status_code)

    threads = [threading.Thread(target=attack) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    with server.client() as client:
        assert all(is_answered(client) for _ in range(3))
    before = len(done)
    for thread in threads:
        thread.join()
    assert before == 0 and len(done) == 3


def test_the_page_s_pictures_are_opened_beside_the_model(server: Server) -> None:
    """Four times a photo of 12 megapixels at once: decoded here, it would be 150 MB."""
    image = Image.new("RGB", (4000, 3000), "teal")
    image.save(buffer := io.BytesIO(), "PNG")
    with server.client() as client:
        client.get("/")
        files = {"photo": ("x.png", buffer.getvalue())}
        lines = client.post("/page/captions", files=files).text.splitlines()
        token = json.loads(lines[-1])["token"]
        before, most = resident(server), 0
        answers: list[httpx.Response] = []

        def fetch() -> None:
            answers.append(client.get(f"/page/captions/{token}/photo.jpg"))

        threads = [threading.Thread(target=fetch) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, resident(server))
            time.sleep(0.01)
    assert [answer.status_code for answer in answers] == [200] * 4
    assert max(Image.open(io.BytesIO(answers[0].content)).size) <= 1440
    assert most - before < 60_000  # kB


def test_gradio_reflects_no_foreign_origin(api: httpx.Client) -> None:
    for path in ("/config", "/gradio_api/info", "/", "/api/health"):
        headers = api.get(path, headers={"Origin": "https://evil.example"}).headers
        assert not [name for name in headers if name.startswith("access-control")]
    answer = api.options(
        "/config",
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_another_name_for_this_machine_opens_nothing(api: httpx.Client) -> None:
    for path in ("/", "/metrics", "/api/health", "/openapi.json"):
        assert api.get(path, headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    ("method", "path", "status", "hint"),
    [
        ("GET", "/api/caption", 405, "curl -F image=@photo.jpg"),
        ("POST", "/api/health", 405, "GET"),
        ("POST", "/api/caption/", 404, "/api/caption, without a slash"),
        ("GET", "/api/health/", 404, "/api/health, without a slash"),
        ("GET", "/api", 404, "/api/caption"),
    ],
)
def test_a_wrong_method_or_path_gets_a_hint(
    api: httpx.Client, method: str, path: str, status: int, hint: str
) -> None:
    answer = api.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert hint in answer.json()["detail"]
    if status == 405:
        assert ("POST" if method == "GET" else "GET") in answer.headers["allow"]


def test_head_is_answered_as_get_is(api: httpx.Client) -> None:
    answer = api.head("/api/health")
    assert answer.status_code == 200 and answer.content == b""
