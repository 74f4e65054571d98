"""The endpoint of gradio_client: it returns records, and opens no other files or URLs."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from captioner import Captioner
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.gradio_guard import Uploads
from tests.conftest import ROOT, make_tiny, make_trust
from tests.node import install, run_module
from tests.serving.server.conftest import SAMPLES, Server
from tests.serving.server.running import serving, until

PHOTO = SAMPLES / "coffee.jpg"
USUAL = (1, 1, False, False, None, None)


@pytest.fixture(scope="module")
def trusting() -> Iterator[httpx.Client]:
    """A server without samples, whose model has trust."""
    captioner = Captioner(make_tiny(), device="cpu", trust=make_trust())
    with serving(captioner) as url, httpx.Client(base_url=url, timeout=300) as client:
        yield client


@pytest.fixture(scope="module")
def asking() -> Iterator[httpx.Client]:
    """A server with MCP."""
    captioner = Captioner(make_tiny(), device="cpu")
    with (
        serving(captioner, ServerConfig(mcp=True)) as url,
        httpx.Client(base_url=url, timeout=300) as client,
    ):
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


def test_gradio_client_gets_the_record(server: Server) -> None:
    import gradio_client

    client = gradio_client.Client(server.url, verbose=False, analytics_enabled=False)
    try:
        photo = gradio_client.handle_file(PHOTO)
        record = client.predict(photo, 2, 2, True, api_name="/caption")
        usual = client.predict(photo, api_name="/caption")
        many = client.predict(photo, captions=7, api_name="/caption")
        with pytest.raises(gradio_client.exceptions.AppError, match="captions is 'x'"):
            client.predict(photo, captions="x", api_name="/caption")
    finally:
        client.close()
    assert record["image"] == "coffee.jpg"
    assert len(record["alternatives"]) == 1
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
def test_the_javascript_of_the_documentation_gets_the_record(
    server: Server, pytestconfig: pytest.Config
) -> None:
    (source,) = re.findall(r"```js\n(.*?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL)
    for name, value in (("http://127.0.0.1:7860", server.url), ("photo.jpg", PHOTO.as_posix())):
        assert name in source
        source = source.replace(name, value)
    said = run_module(source, install(pytestconfig, "@gradio/client@2.7.0"))
    with server.client() as client:
        answer = client.post("/api/caption", files={"image": PHOTO.read_bytes()}).json()
    assert said.strip() == answer["records"][0]["caption"]


@pytest.mark.filterwarnings("ignore:.future.no_silent_downcasting")  # of Gradio
def test_a_caption_below_the_least_trust_is_marked(trusting: httpx.Client, server: Server) -> None:
    image = file_data(upload(trusting))

    def asked(least: Any) -> Any:
        return result(trusting, call(trusting, image, *USUAL[:-1], least))

    (plain,) = asked(None)["data"]
    trust = plain["trust"]
    assert 0 < trust < 0.99 and "review" not in plain
    assert asked(trust)["data"] == [plain]
    assert asked(trust + 0.01)["data"] == [{**plain, "review": True}]
    (checked,) = result(trusting, call(trusting, image, 1, 1, False, True, None, None))["data"]
    assert all("effect" in word for word in checked["words"])
    styled = result(trusting, call(trusting, image, 1, 1, False, False, "short", None))
    assert "no style 'short'" in styled["error"]
    assert "minimum_trust is '2': it should be less than or equal to 1" in asked(2)["error"]
    assert "minimum_trust is 'x': it should be a valid number" in asked("x")["error"]
    with server.client() as plain_model:
        call_id = call(plain_model, file_data(upload(plain_model)), *USUAL[:-1], 0.5)
        output = result(plain_model, call_id)
    assert "a trust file, but the checkpoint tiny has none" in output["error"]


def test_a_link_to_the_page_shows_the_product(
    server: Server, api: httpx.Client, trusting: httpx.Client
) -> None:
    tags = re.findall(r"<meta[^>]*(?:og|twitter):[^>]*>", api.get("/").text)
    said = dict(re.findall(r'"([a-z]+:[a-z]+)" content="([^"]*)"', "".join(tags)))
    assert len(tags) == len(said) == 5 and "Gradio" not in "".join(tags)
    assert said["og:title"] == "Captioner" and "A photo in" in said["og:description"]
    assert said["og:image"] == f"{server.url}/page/preview.jpg"
    picture = api.get("/page/preview.jpg")
    with Image.open(io.BytesIO(picture.content)) as drawn, Image.open(PHOTO) as photo:
        assert drawn.size == photo.size and picture.headers["content-type"] == "image/jpeg"
    plain = trusting.get("/").text  # without a sample there is no picture
    assert trusting.get("/page/preview.jpg").status_code == 404
    assert "og:image" not in plain and "twitter:" not in plain and "og:title" in plain


def test_only_uploads_are_opened(api: httpx.Client) -> None:
    uploads = Path(upload(api)).parent
    for path in (
        "/etc/hostname", "http://127.0.0.1:1/x.jpg", "HTTPS://example.org/", "file:///etc/hostname",
        "../../../../etc/hostname", "", "\0", f"{uploads}/../../../../etc/hostname", str(PHOTO),
    ):  # fmt: skip
        for image in (file_data(path), {"path": path}):
            for value in (image, {"a": [image]}):
                answer = call(api, value)
                assert (answer.status_code, answer.json()["type"]) == (403, "forbidden"), value


@pytest.mark.parametrize("image", ["/etc/hostname", "http://127.0.0.1:1/", 7, [1]])
def test_what_is_no_file_is_refused(api: httpx.Client, image: Any) -> None:
    answer = call(api, image)
    assert (answer.status_code, answer.json()["type"]) == (400, "bad-request")


@pytest.mark.parametrize("session", [None, 5, ["x"]])
def test_a_call_without_a_session_is_refused(asking: httpx.Client, session: Any) -> None:
    answer = call(asking, None, *USUAL, session_hash=session)
    assert answer.status_code == 400
    assert "session_hash is missing: use gradio_client" in answer.json()["detail"]


@pytest.mark.parametrize("image", [{"a": 1}, None])
def test_a_call_without_a_photo_fails_in_words(api: httpx.Client, image: Any) -> None:
    output = result(api, call(api, image, *USUAL))
    assert "handle_file" in output["error"] or "upload it again" in output["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[1]", 400), (b"[" * 15_000, 400), (b"x" * 20_000, 413), (b'{"data": 7}', 400)],
)
def test_a_large_or_malformed_call_is_refused(api: httpx.Client, body: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    answer = api.post("/gradio_api/queue/join", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("number", "values"), [(0, 0), (0, 6), (0, 8), (1, 0), (1, 3), (1, 7), (99, 7), (None, 7)]
)
def test_a_call_of_anything_but_the_function_is_refused(
    asking: httpx.Client, number: int | None, values: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of the assistants' function too: Gradio would write a traceback into the log."""
    body = {"data": [None] * values, "fn_index": number, "session_hash": secrets.token_hex(5)}
    answer = asking.post("/gradio_api/queue/join", json=body)
    assert (answer.status_code, answer.json()["type"]) == (400, "bad-request")
    assert "Traceback" not in capfd.readouterr().err


def test_the_limit_of_uploads_applies_to_gradio(api: httpx.Client) -> None:
    answer = api.post("/gradio_api/upload", files={"files": ("x.jpg", bytes(22_000_000))})
    assert answer.status_code == 413 and answer.json()["type"] == "upload-too-large"


def test_a_request_uploads_one_file(api: httpx.Client, server: Server) -> None:
    before = server.uploads()
    files = [("files", (f"{number}.jpg", b"x")) for number in range(999)]
    answer = api.post("/gradio_api/upload", files=files)
    assert answer.status_code == 413 and "one file per request" in answer.json()["detail"]
    assert server.uploads() == before


def test_the_folder_of_an_upload_is_deleted_with_it(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, capacity=1_000_000, ttl=-10)  # everything is old
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "photo.jpg").write_bytes(b"x")
    uploads.sweep()
    assert tmp_path.is_dir() and not [*tmp_path.iterdir()]


def test_a_client_has_at_most_16_heartbeats(trusting: httpx.Client) -> None:
    with contextlib.ExitStack() as stack:
        path = "/gradio_api/heartbeat/x"
        streams = [stack.enter_context(trusting.stream("GET", path)) for _ in range(17)]
        assert [stream.status_code for stream in streams] == [200] * 16 + [503]


def test_a_client_that_first_sends_all_reads_why_its_upload_is_too_large(server: Server) -> None:
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=300)
    with contextlib.closing(connection):
        connection.request("POST", "/api/caption", bytes(40_000_000))
        answer = connection.getresponse()
        assert answer.status == 413 and b"the limit of a request is 20 MB" in answer.read()


def test_an_unknown_host_gets_a_sentence(api: httpx.Client) -> None:
    for path, member in {"/": "detail", "/api/tags": "error"}.items():
        answer = api.get(path, headers={"Host": "evil.example:80"})
        assert answer.status_code == 400 and "--allowed-host" in answer.json()[member]


@pytest.mark.slow
def test_uploads_are_private_and_deleted_in_time_or_with_the_server(
    start: Callable[..., Server],
) -> None:
    server = start("--upload-ttl", 1)
    with server.client() as client:
        stored = Path(upload(client))
        assert stored.read_bytes() == PHOTO.read_bytes()
        folder = next(each for each in stored.parents if each.name.startswith("captioner-"))
        assert folder.stat().st_mode & 0o077 == 0
        assert all(path.is_relative_to(folder) for path in server.uploads())
        assert until(lambda: not server.uploads())
        output = result(client, call(client, file_data(str(stored)), *USUAL))
        assert "upload it again" in json.dumps(output)
        upload(client)
    assert server.stop() == 0
    assert server.uploads() == []
