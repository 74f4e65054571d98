"""One password for everything, from a file or the environment, and in no log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.server.conftest import SAMPLES, Server

SECRET = "ann:correct horse: battery"
WHO = ("ann", "correct horse: battery")
ROUTES = [
    "/", "/api/health", "/metrics", "/docs", "/openapi.json", "/config", "/theme.css", "/nonsense",
    "/gradio_api/info", "/gradio_api/heartbeat/x", "/gradio_api/file=/etc/passwd",
    "/page/captions/x", "/page/captions/x/photo.jpg", "/page/static/viewer.js",
    "/static-offline-docs/swagger-ui.css",
]  # fmt: skip


@pytest.fixture(params=["file", "environment"])
def guarded(request: pytest.FixtureRequest, tmp_path: Path, start: Callable[..., Server]) -> Server:
    if request.param == "environment":
        return start(CAPTIONER_AUTH=SECRET)
    (tmp_path / "secret").write_text(SECRET + "\n")
    return start("--auth-file", tmp_path / "secret")


def test_nothing_is_open_without_the_password(guarded: Server) -> None:
    with guarded.client() as client:
        for route in ROUTES:
            answer = client.get(route)
            assert answer.status_code == 401, route
            assert answer.headers["www-authenticate"].startswith("Basic ")
        for route in (
            "/api/caption",
            "/page/captions",
            "/gradio_api/upload",
            "/gradio_api/queue/join",
        ):
            assert client.post(route, files={"image": b"x"}).status_code == 401
    photo = (SAMPLES / "coffee.jpg").read_bytes()
    with guarded.client(auth=WHO) as client:
        assert client.get("/").status_code == 200
        assert client.get("/metrics").status_code == 200
        assert client.post("/api/caption", files={"image": photo}).status_code == 200
    log = "".join(guarded.lines)
    assert '"user": "ann"' in log
    assert "battery" not in log and "Basic" not in log


def test_guessing_is_slowed_down(start: Callable[..., Server]) -> None:
    server = start(CAPTIONER_AUTH=SECRET)
    with server.client(auth=("ann", "guess")) as client:
        statuses = [client.get("/api/health").status_code for _ in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        assert int(client.get("/").headers["retry-after"]) > 0
    with server.client(auth=WHO) as client:
        assert client.get("/api/health").status_code == 429  # the address, right or wrong


def test_the_log_tells_requests_apart_and_no_photo(start: Callable[..., Server]) -> None:
    server = start()
    with server.client() as client:
        client.get("/")
        client.post("/api/caption?token=hush", files={"image": ("secret-name.jpg", b"x")})
        files = {"files": ("secret-name.jpg", b"x")}
        stored = client.post("/gradio_api/upload", files=files).json()[0]
        client.get(f"/gradio_api/file={stored}")
    assert server.stop() == 0
    log = "".join(line for line in server.lines if line.startswith("{"))
    assert '"path": "/api/caption", "status": 415' in log
    assert re.search(r'"path": "/gradio_api/file=\.\.\."', log)
    assert "secret-name" not in log and "hush" not in log
