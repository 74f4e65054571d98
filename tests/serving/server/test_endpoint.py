"""The endpoint of gradio_client: it returns records, and opens no other files or URLs."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.service import CaptionService
from tests.conftest import ROOT, make_tiny, make_trust
from tests.node import install, run_module
from tests.serving.server.conftest import SAMPLES, Server
from tests.serving.server.running import Clock, client_at, serving

PHOTO = SAMPLES / "coffee.jpg"
USUAL = (1, 1, False, False, None, None)


@pytest.fixture(scope="module")
def trusting() -> Iterator[httpx.Client]:
    """A server without samples, whose model has trust."""
    captioner = Captioner(make_tiny(), device="cpu", trust=make_trust())
    with serving(captioner) as url, httpx.Client(base_url=url, timeout=300) as client:
        yield client


def upload(client: httpx.Client) -> str:
    files = {"files": (PHOTO.name, PHOTO.read_bytes())}
    (stored,) = client.post("/gradio_api/upload", files=files).json()
    return str(stored)


def call(client: httpx.Client, image: Any, *values: Any, **fields: Any) -> httpx.Response:
    config = client.get("/config").json()["dependencies"]
    (number,) = [one["id"] for one in config if one["api_name"] == "caption"]
    body = {"data": [image, *values], "fn_index": number, "session_hash": secrets.token_hex(5)}
    body |= fields
    answer = client.post("/gradio_api/queue/join", json=body)
    answer.extensions["session"] = body["session_hash"]
    return answer


def result(client: httpx.Client, answer: httpx.Response) -> Any:
    query = {"session_hash": answer.extensions["session"]}
    with client.stream("GET", "/gradio_api/queue/data", params=query) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:") and "process_completed" in line:
                return json.loads(line[5:])["output"]
    raise AssertionError("no result")


def file_data(path: str) -> dict[str, Any]:
    return {"path": path, "orig_name": "mine.jpg", "meta": {"_type": "gradio.FileData"}}


# Tests of the clock are first: a server that runs when it goes back waits as long.
@pytest.fixture
def few(
    tiny_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[httpx.Client, Clock]]:
    """A server with room for four unread results of one client and 2 MB, and a clock."""
    clock, config = Clock(monkeypatch), ServerConfig(queue=4, max_upload=200_000)
    close = {"Connection": "close"}  # the server would close idle connections when time leaps
    with (
        serving(Captioner(tiny_checkpoint), config) as url,
        httpx.Client(base_url=url, headers=close, timeout=300) as client,
    ):
        yield client, clock


def test_uploads_are_limited_by_address_and_in_total_and_kept_for_a_minute(
    few: tuple[httpx.Client, Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, clock = few

    def send(client: httpx.Client) -> int:
        answer = client.post("/gradio_api/upload", files={"files": ("x.jpg", bytes(190_000))})
        assert answer.status_code == 200 or answer.headers["Retry-After"] == "60"
        return answer.status_code

    url = client.base_url
    with client_at(url, "127.0.0.2") as modest, client_at(url, "127.0.0.3") as third:
        assert [send(client) for _ in range(6)] == [200] * 5 + [503]  # half of the space
        assert [send(modest) for _ in range(5)] == [200] * 5
        assert send(third) == 503
    clock.ahead += 61
    old = file_data(upload(client))
    clock.ahead += 61
    assert call(client, old, *USUAL).status_code == 403
    monkeypatch.setattr(ServerConfig, "max_bodies", 200_000)
    assert send(client) == 200  # one upload may take more than half of the space


def test_unread_results_are_limited_and_dropped_after_a_minute(
    few: tuple[httpx.Client, Clock],
) -> None:
    client, clock = few
    image = file_data(upload(client))
    calls = [call(client, image, *USUAL) for _ in range(5)]
    assert [answer.status_code for answer in calls] == [200] * 4 + [503]
    assert calls[4].headers["Retry-After"] == "60"
    statuses = []
    for number in (2, 3, 4, 5):  # room for 16 of all clients
        with client_at(client.base_url, f"127.0.0.{number}") as other:
            session = {"session_hash": "shared"}  # which takes no place of its first client
            statuses += [call(other, image, *USUAL, **session).status_code for _ in range(5)]
    assert statuses == ([200] * 4 + [503]) * 3 + [503] * 5
    assert result(client, calls[0])["data"][0]["caption"]
    assert call(client, image, *USUAL).status_code == 200  # in the place of the one that was read
    assert call(client, image, *USUAL).status_code == 503
    clock.ahead += 61
    image = file_data(upload(client))
    assert result(client, call(client, image, *USUAL))["data"][0]["caption"]
    for read in (calls[0], calls[1]):
        query = {"session_hash": read.extensions["session"]}
        answer = client.get("/gradio_api/queue/data", params=query)
        assert (answer.status_code, answer.json()["type"]) == (404, "no-such-session")


def test_a_session_has_one_reader_within_a_minute_of_its_last_call(
    few: tuple[httpx.Client, Clock],
) -> None:
    client, clock = few
    for _ in range(2):
        clock.ahead += 40
        image = file_data(upload(client))
        assert call(client, image, *USUAL, session_hash="slow").status_code == 200
    clock.ahead += 40
    with ThreadPoolExecutor() as pool:
        read = ["/gradio_api/queue/data?session_hash=slow"] * 4
        streams = "".join(answer.text for answer in pool.map(client.get, read))
    assert streams.count("process_completed") == 2 and streams.count("close_stream") == 1


def test_gradio_client_gets_the_record(server: Server) -> None:
    import gradio_client

    client = gradio_client.Client(server.url, verbose=False, analytics_enabled=False)
    try:
        photo = gradio_client.handle_file(PHOTO)
        record = client.predict(photo, 2, 2, True, True, api_name="/caption")
        usual = client.predict(photo, api_name="/caption")
        many = client.predict(photo, captions=7, api_name="/caption")
        with pytest.raises(gradio_client.exceptions.AppError, match="captions is 'x'"):
            client.predict(photo, captions="x", api_name="/caption")
    finally:
        client.close()
    assert record["image"] == "coffee.jpg" and len(record["alternatives"]) == 1
    for text in (record, *record["alternatives"]):
        assert all({"attention", "effect"} <= word.keys() for word in text["words"])
    assert sum(record["words"][0]["attention"]["weights"]) == pytest.approx(1, abs=1e-3)
    # The beam is what everybody's is: the checkpoint's, or as wide as the captions need.
    with server.client() as http:
        data = PHOTO.read_bytes()
        wanted = http.post("/api/caption", files={"image": ("coffee.jpg", data)}).json()
    for word in wanted["records"][0]["words"]:
        word.pop("doubtful", None)
    wanted["records"][0].pop("doubt", None)
    assert wanted["records"] == [usual]
    assert len(many["alternatives"]) == 6


@pytest.mark.needs("node")
def test_the_javascript_example_gets_the_record(
    server: Server, pytestconfig: pytest.Config
) -> None:
    source = (ROOT / "examples/gradio.mjs").read_text()
    for name, value in (("http://127.0.0.1:7860", server.url), ("photo.jpg", PHOTO.as_posix())):
        assert name in source
        source = source.replace(name, value)
    said = run_module(source, install(pytestconfig, "@gradio/client@2.7.0"))
    with server.client() as client:
        answer = client.post("/api/caption", files={"image": PHOTO.read_bytes()}).json()
    assert said.strip() == answer["records"][0]["caption"]


def test_the_fields_of_a_call_are_those_of_the_api(trusting: httpx.Client) -> None:
    image = file_data(upload(trusting))

    def asked(style: str | None, least: float | None) -> Any:
        return result(trusting, call(trusting, image, *USUAL[:-2], style, least))

    (plain,) = asked(None, None)["data"]
    assert asked("", plain["trust"] + 0.01)["data"] == [{**plain, "review": True}]
    assert "minimum_trust is 2" in asked(None, 2)["error"]
    assert "no style 'short'" in asked("short", None)["error"]


def test_only_uploads_are_captioned(api: httpx.Client, server: Server) -> None:
    for path in ("/etc/hostname", "http://127.0.0.1:1/x.jpg", "", "\0", str(PHOTO)):
        answer = call(api, {"path": path}, *USUAL)
        assert (answer.status_code, answer.json()["type"]) == (403, "forbidden"), path
        assert "handle_file" in answer.json()["detail"]
    assert call(api, file_data(upload(api)), *USUAL).status_code == 200
    assert server.uploads() == []  # photos stay in memory


@pytest.mark.parametrize(
    ("image", "values", "fields", "said"),
    [
        ("/etc/hostname", USUAL, {}, "data.0"),
        ({"path": "x", "orig_name": 256 * "x"}, USUAL, {}, "orig_name"),
        ({"path": "x", "orig_name": ["x"]}, USUAL, {}, "orig_name"),
        (None, USUAL[1:], {}, "data.6"),
        (None, USUAL, {"data": 7}, "data is"),
        (None, USUAL, {"session_hash": None}, "session_hash"),
        (None, USUAL, {"session_hash": 65 * "x"}, "session_hash"),
    ],
)
def test_an_invalid_call_is_refused(
    api: httpx.Client, image: Any, values: tuple[Any, ...], fields: dict[str, Any], said: str
) -> None:
    answer = call(api, image, *values, **fields)
    assert (answer.status_code, answer.json()["type"]) == (400, "bad-request")
    assert said in answer.json()["detail"]


def test_a_call_has_at_most_16_000_bytes(trusting: httpx.Client) -> None:
    """It is refused before the rest arrives."""
    path, where = "/gradio_api/queue/join", trusting.base_url
    image = file_data(upload(trusting)) | {"orig_name": 255 * "ä"}
    body = json.dumps({"data": [image, *USUAL], "session_hash": "sized"}).encode()
    assert trusting.post(path, content=body.ljust(16_000)).status_code == 200
    stream = trusting.get("/gradio_api/queue/data?session_hash=sized").text
    assert json.loads(stream.splitlines()[0][5:])["output"]["data"][0]["image"] == 255 * "ä"
    with socket.create_connection((where.host, where.port), 300) as peer:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n"
        peer.sendall(head.encode() + body.ljust(16_001))
        assert peer.recv(12).endswith(b" 413")


def test_an_unexpected_error_ends_one_call(
    trusting: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caption_one = CaptionService.caption_one

    async def failing(service: CaptionService, *order: Any, **options: Any) -> Any:
        caption = await caption_one(service, *order, **options)
        return caption if caption.alternatives else 1 / 0

    monkeypatch.setattr(CaptionService, "caption_one", failing)
    image, session = file_data(upload(trusting)), {"session_hash": "failing"}
    failed, good = (
        call(trusting, image, captions, captions, *USUAL[2:], **session).json()["event_id"]
        for captions in (1, 2)
    )
    stream = trusting.get("/gradio_api/queue/data", params=session).text
    messages = [json.loads(line[5:]) for line in stream.splitlines() if line]
    outputs = {message["event_id"]: message.get("output") for message in messages}
    assert "log" in outputs[failed]["error"] and "zero" not in stream
    assert outputs[good]["data"][0]["caption"]
    assert "ZeroDivisionError" in caplog.text


def test_an_upload_has_one_file_of_limited_size(api: httpx.Client) -> None:
    for files, status in (
        ([("files", bytes(22_000_000))], 413),
        ([("files", b"x")] * 999, 413),
        ([("files", (None, "text"))], 400),
    ):
        assert api.post("/gradio_api/upload", files=files).status_code == status
