"""Gradio's routes: nobody reads a file, fetches a link or touches another session's photo."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

from captioner_serving.server.app import _http_problem
from tests.serving.server.conftest import SAMPLES, Server
from tests.serving.server.running import until

PHOTO = SAMPLES / "coffee.jpg"


@pytest.fixture
def page(server: Server) -> httpx.Client:
    """A browser that has opened the page: it has the cookie."""
    with server.client() as client:
        assert client.get("/").status_code == 200
        yield client


def upload(client: httpx.Client, path: Path = PHOTO) -> str:
    answer = client.post("/gradio_api/upload", files={"files": (path.name, path.read_bytes())})
    assert answer.status_code == 200, answer.text
    (stored,) = answer.json()
    return stored


def function(client: httpx.Client, name: str = "caption") -> int:
    """The number of one of the page's functions."""
    config = client.get("/config").json()
    names = [item["api_name"] for item in config["dependencies"]]
    return config["dependencies"][names.index(name)]["id"]


def call(
    client: httpx.Client,
    image: Any,
    session: str | None = None,
    values: tuple[Any, ...] = (1, 1, False, False),
) -> httpx.Response:
    body = {
        "data": [image, *values],
        "fn_index": function(client),
        "session_hash": session or secrets.token_hex(5),
    }
    return client.post("/gradio_api/queue/join", json=body)


def result(client: httpx.Client, session: str) -> dict[str, Any]:
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as lines:
        for line in lines.iter_lines():
            if line.startswith("data:"):
                message = json.loads(line[5:])
                if message["msg"] == "process_completed":
                    return message
    raise AssertionError("the stream ended without a result")


def file_data(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "orig_name": "x.jpg", "meta": {"_type": "gradio.FileData"}, **more}


def test_a_session_gets_a_caption_of_its_own_upload(page: httpx.Client) -> None:
    session = secrets.token_hex(5)
    assert call(page, file_data(upload(page)), session).status_code == 200
    message = result(page, session)
    assert message["success"], message
    (record,) = message["output"]["data"]
    assert record["caption"] and record["image"] == "x.jpg"


@pytest.mark.parametrize("values", [(), (1, 1, True)])
def test_a_call_that_leaves_values_out_gets_the_usual_ones(
    page: httpx.Client, values: tuple[Any, ...]
) -> None:
    session = secrets.token_hex(5)
    assert call(page, file_data(upload(page)), session, values).status_code == 200
    (record,) = result(page, session)["output"]["data"]
    assert record["caption"] and ("attention" in record["words"][0]) is bool(values)


PATHS = [
    "/etc/passwd",
    "../../../../etc/passwd",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x.jpg",
    "https://example.org/x.jpg",
    str(PHOTO),
    "",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_other_path_is_taken(page: httpx.Client, path: str) -> None:
    for image in (file_data(path), {"path": path}, {"path": path, "url": path}):
        assert call(page, image).status_code == 403


@pytest.mark.parametrize(
    "image",
    [
        {"url": "http://127.0.0.1:1/x.jpg"},
        {"url": "/etc/passwd", "meta": {"_type": "gradio.FileData"}},
        {"path": None, "meta": {"_type": "gradio.FileData"}},
        {"path": ["/etc/passwd"]},
        {"path": {"path": "/etc/passwd"}},
        {"nested": [{"deep": {"path": "/etc/passwd"}}]},
        [file_data("/etc/passwd")],
        {**file_data("/etc/passwd"), "more": {"path": "/etc/passwd"}},
    ],
)
def test_no_disguise_is_taken(page: httpx.Client, image: Any) -> None:
    assert call(page, image).status_code == 400


def test_another_session_cannot_use_or_see_the_photo(server: Server, page: httpx.Client) -> None:
    stored = upload(page)
    assert call(page, file_data(stored), "first").status_code == 200
    assert page.get(f"/gradio_api/file={stored}").content == PHOTO.read_bytes()
    with server.client() as stranger:
        stranger.get("/")
        assert call(stranger, file_data(stored), "second").status_code == 403
        assert stranger.get(f"/gradio_api/file={stored}").status_code == 403
    with httpx.Client(base_url=server.url) as nobody:
        assert nobody.get(f"/gradio_api/file={stored}").status_code == 403


@pytest.mark.parametrize("path", [*PATHS, "/etc/hostname", "%2e%2e/%2e%2e/etc/passwd"])
def test_no_file_is_read_back(page: httpx.Client, path: str) -> None:
    for route in ("file=", "file/", "proxy=", "stream/", "custom_component/"):
        answer = page.get(f"/gradio_api/{route}{path}")
        assert answer.status_code in (403, 404)
        assert "root:" not in answer.text


@pytest.mark.parametrize(
    "route",
    [
        "/gradio_api/run/caption", "/gradio_api/api/caption", "/gradio_api/call/caption",
        "/gradio_api/component_server", "/gradio_api/process_recording", "/gradio_api/vibe-edit",
        "/gradio_api/stream/x", "/gradio_api/run-history/connect", "/login", "/monitoring",
        "/gradio_api/deep_link", "/gradio_api/dev/reload", "/gradio_api/runs", "/nonsense",
        "/static/../../../../../etc/passwd", "/assets/..%2f..%2f..%2f..%2fetc/passwd",
    ],
)  # fmt: skip
def test_what_the_page_does_not_need_does_not_exist(page: httpx.Client, route: str) -> None:
    for answer in (page.get(route), page.post(route, json={"data": [file_data("/etc/passwd")]})):
        assert answer.status_code in (403, 404, 405)
        assert "root:" not in answer.text


def test_an_upload_cannot_be_run_by_the_browser(page: httpx.Client, tmp_path: Path) -> None:
    for name, text in {"x.html": "<script>alert(1)</script>", "x.svg": "<svg onload='1'/>"}.items():
        (tmp_path / name).write_text(text)
        answer = page.get(f"/gradio_api/file={upload(page, tmp_path / name)}")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_limit_holds_for_the_page_too(page: httpx.Client) -> None:
    answer = page.post("/gradio_api/upload", files={"files": ("x.jpg", bytes(21_000_000))})
    assert answer.status_code == 413
    two = [("files", ("x.jpg", b"1")), ("files", ("y.jpg", b"2"))]
    assert page.post("/gradio_api/upload", files=two).status_code == 413


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[" * 100_000, b"null", b"x" * 17_000])
def test_a_malformed_call_is_refused(page: httpx.Client, body: bytes) -> None:
    answer = page.post(
        "/gradio_api/queue/join", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 413, 422)


@pytest.mark.parametrize(
    ("method", "route", "status", "kind"),
    [
        ("GET", "/assets/nope.js", 404, "no-such-route"),
        ("GET", "/static/nope.css", 404, "no-such-route"),
        ("GET", "/static/%2e%2e/%2e%2e/x", 404, "no-such-route"),
        ("GET", "/page/static/nope.js", 404, "no-such-route"),
        ("GET", "/gradio_api/queue/data", 400, "bad-request"),
        ("POST", "/gradio_api/queue/join", 400, "bad-request"),
        ("POST", "/gradio_api/cancel", 400, "bad-request"),
        ("POST", "/gradio_api/reset", 400, "bad-request"),
    ],
)
def test_what_gradio_refuses_is_a_problem_as_everywhere_and_no_cache_keeps_it(
    page: httpx.Client, method: str, route: str, status: int, kind: str
) -> None:
    answer = page.request(method, route, json={} if method == "POST" else None)
    assert (answer.status_code, answer.json()["type"]) == (status, kind)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert "traceback" not in answer.json()["detail"].lower()


def said_of(server: Server, do: Callable[[httpx.Client], object]) -> list[str]:
    """What the server says when a stranger does something; it tells each path that it lacks."""
    before, after = secrets.token_hex(8), secrets.token_hex(8)
    with server.client() as client:
        client.get(f"/{before}")
        server.said(0, before)
        do(client)
        client.get(f"/{after}")
        server.said(0, after)
    first, last = (
        next(at for at, line in enumerate(server.lines) if mark in line) for mark in (before, after)
    )
    return server.lines[first + 1 : last]


@pytest.mark.parametrize(
    ("method", "route", "request_", "status"),
    [
        ("GET", "queue/data", {"params": {"session_hash": "nobody"}}, 404),
        ("GET", "queue/data", {"headers": {"Connection": "Upgrade", "Upgrade": "websocket"}}, 400),
        ("POST", "queue/join", {"json": {"data": ["x"], "fn_index": 0, "session_hash": "s"}}, 400),
        ("POST", "queue/join", {"json": {"data": [7], "fn_index": 0, "session_hash": "s"}}, 400),
        ("POST", "queue/join", {"json": {"data": [], "fn_index": 0, "session_hash": ""}}, 400),
    ],
    ids=["no session", "websocket", "text for an image", "number", "empty session"],
)
def test_what_a_stranger_gets_wrong_is_a_line_at_most(
    server: Server, method: str, route: str, request_: dict[str, Any], status: int
) -> None:
    answers: list[httpx.Response] = []
    lines = said_of(
        server, lambda it: answers.append(it.request(method, f"/gradio_api/{route}", **request_))
    )
    assert answers[0].status_code == status
    assert answers[0].headers["content-type"] == "application/problem+json"
    assert len(lines) <= 1, lines


def test_two_who_hear_of_one_session_and_leave_make_no_traceback(server: Server) -> None:
    """Gradio forgets the session for each of them."""
    session = secrets.token_hex(5)

    def listen(client: httpx.Client) -> AbstractContextManager[httpx.Response]:
        return client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session})

    def status(client: httpx.Client) -> int:
        with listen(client) as answer:
            return answer.status_code

    def leave(client: httpx.Client) -> None:
        assert call(client, None, session).status_code == 200
        result(client, session)
        with ExitStack() as stack:
            for _ in range(2):
                other = stack.enter_context(server.client())
                assert stack.enter_context(listen(other)).status_code == 200
        assert until(lambda: status(client) == 404)  # it has heard that they left

    assert not any("Traceback" in line for line in said_of(server, leave))


def test_a_full_queue_of_gradios_says_when_to_come_again() -> None:
    """Its client knows this by the status."""
    answer = _http_problem(HTTPException(503, "Queue is full. Max size is 64 and size is 64."))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_what_lasts_is_kept_by_caches(page: httpx.Client) -> None:
    script = re.search(r"assets/[\w./-]+\.js", page.get("/").text)
    assert script is not None
    answer = page.get(f"/{script[0]}")
    assert answer.status_code == 200 and answer.headers.get("cache-control") != "no-store"


def test_every_answer_has_the_security_headers(api: httpx.Client) -> None:
    for route in ("/", "/api/health", "/metrics", "/docs", "/nonsense", "/gradio_api/info"):
        headers = api.get(route).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_the_pages_scripts_are_kept_by_browsers_and_asked_for_anew(api: httpx.Client) -> None:
    script = api.get("/page/static/work.js")
    assert script.headers["cache-control"] == "no-cache"  # kept, and never used unasked
    known = {"If-None-Match": script.headers["etag"]}
    assert api.get("/page/static/work.js", headers=known).status_code == 304


def test_uploads_are_private_and_go_with_the_server(start: Callable[..., Server]) -> None:
    server = start()
    with server.client() as client:
        client.get("/")
        stored = Path(upload(client))
        assert stored.read_bytes() == PHOTO.read_bytes()
        folder = stored.parent.parent
        assert folder.stat().st_mode & 0o077 == 0
        assert call(client, file_data(str(stored)), "s").status_code == 200
        result(client, "s")
        assert {path.parent.parent for path in server.uploads()} == {folder}
    assert server.stop() == 0
    assert server.uploads() == []


def test_uploads_are_deleted_in_time(start: Callable[..., Server]) -> None:
    server = start("--keep", 1)
    with server.client() as client:
        client.get("/")
        stored = upload(client)
        deadline = time.monotonic() + 300
        while server.uploads() and time.monotonic() < deadline:
            time.sleep(0.2)
        assert server.uploads() == []
        assert call(client, file_data(stored)).status_code == 403
