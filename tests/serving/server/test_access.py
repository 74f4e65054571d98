"""One password for everything, from a file or the environment, and in no log."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving.server.conftest import ROOT, SAMPLES, Server, serve

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SECRET = "ann:correct horse: battery"
WHO = ("ann", "correct horse: battery")
ROUTES = [
    "/", "/api/health", "/api/health/ready",
    "/metrics", "/docs", "/openapi.json", "/config", "/theme.css", "/nonsense",
    "/gradio_api/info", "/gradio_api/heartbeat/x", "/gradio_api/file=/etc/passwd",
    "/page/samples/coffee", "/page/static/viewer.js",
    "/static-offline-docs/swagger-ui.css",
]  # fmt: skip


@pytest.fixture(scope="module")
def by_file(tmp_path_factory: pytest.TempPathFactory, saved_tiny: Path) -> Iterator[Server]:
    """A server that has its secret from a file that everybody can read."""
    folder = tmp_path_factory.mktemp("file")
    (folder / "secret").write_text(SECRET + "\n")
    (folder / "secret").chmod(0o644)
    options = ("--log", "-", "--auth-file", folder / "secret")
    with serve(folder / "tmp", "--checkpoint", saved_tiny, *options) as running:
        yield running


@pytest.fixture(scope="module")
def by_variable(tmp_path_factory: pytest.TempPathFactory, saved_tiny: Path) -> Iterator[Server]:
    """A server that has its secret from the environment."""
    folder = tmp_path_factory.mktemp("variable")
    options = ("--log", "-", "--checkpoint", saved_tiny)
    with serve(folder, *options, CAPTIONER_AUTH=SECRET) as running:
        yield running


@pytest.fixture(params=["by_file", "by_variable"], ids=["file", "environment"])
def guarded(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


def test_nothing_is_open_without_the_password(guarded: Server) -> None:
    with guarded.client() as client:
        for route in ROUTES:
            answer = client.get(route)
            assert answer.status_code == 401, route
            assert answer.headers["www-authenticate"].startswith("Basic ")
        for route in ("/api/caption", "/api/sheet", "/gradio_api/upload", "/gradio_api/queue/join"):
            assert client.post(route, files={"image": b"x"}).status_code == 401
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        assert client.get("/gradio_api/queue/data", headers=upgrade).status_code == 401
    photo = (SAMPLES / "coffee.jpg").read_bytes()
    with guarded.client(auth=WHO) as client:
        assert client.get("/").status_code == 200
        assert client.get("/metrics").status_code == 200
        assert client.post("/api/caption", files={"image": photo}).status_code == 200
    log = guarded.said(0, r'"user": "ann"')
    assert "battery" not in log and "Basic" not in log


def test_the_log_identifies_requests_but_no_photo(by_file: Server) -> None:
    before = len(by_file.lines)
    with by_file.client(auth=WHO) as client:
        client.get("/")
        client.post("/api/caption?token=hush", files={"image": ("secret-name.jpg", b"x")})
        files = {"files": ("secret-name.jpg", b"x")}
        client.post("/gradio_api/upload", files=files)
    log = by_file.said(before, r'"path": "/gradio_api/upload"')
    assert '"path": "/api/caption", "status": 400' in log
    assert "secret-name" not in log and "hush" not in log


def test_wrong_passwords_are_refused_without_a_lockout(guarded: Server) -> None:
    guesses = [("ann", "guess"), *((user, WHO[1]) for user in ("eve", "", "Ann", "ann "))]
    for guess in guesses * 5:
        with guarded.client(auth=guess) as client:
            assert client.get("/metrics").status_code == 401, guess
    with guarded.client(auth=WHO) as client:
        assert client.get("/metrics").status_code == 200


def test_a_liveness_probe_needs_no_password(guarded: Server) -> None:
    """The command of the container's health check, run against a server with a password."""
    dockerfile = (ROOT / "examples" / "deploy" / "Dockerfile").read_text()
    (code,) = re.findall(r'"(import httpx; .*)"\]', dockerfile)
    check = code.replace("http://127.0.0.1:7860", guarded.url)
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
    stopped = code.replace("http://127.0.0.1:7860", "http://127.0.0.1:9")
    quiet = {"stderr": subprocess.DEVNULL, "check": False}
    assert subprocess.run([sys.executable, "-c", stopped], **quiet).returncode != 0
    with guarded.client() as client:
        assert client.get("/api/health/live").json() == {"status": "live"}


def test_a_secret_that_others_can_read_is_warned_of(by_file: Server) -> None:
    assert any("warning: others" in line and "chmod 600" in line for line in by_file.lines)


def test_a_terminal_gets_a_line_a_caption_or_failure(server: Server) -> None:
    place = next(at for at, line in enumerate(server.lines) if " page is at " in line)
    start = [line.split(" ", 2)[2] for line in server.lines[:place]]
    assert all(line.startswith("the model") for line in start)
    photo = (SAMPLES / "coffee.jpg").read_bytes()
    with server.client() as client:
        client.get("/before")  # after what other tests have made it say
        server.said(place, "/before")
        before = len(server.lines)
        for path in ("/", "/config", "/theme.css", "/api/health"):
            client.get(path)
        client.post("/api/caption", files={"image": ("secret-name.jpg", photo)})
        client.post("/api/caption", files={"image": ("secret-name.jpg", b"x")})
        client.get("/nowhere")
    lines = server.said(before, "/nowhere").splitlines()
    said = [re.sub(r"\d\.\d\d", "N", line.split(" ", 2)[2].strip()) for line in lines]
    assert said == [
        "captioned a photo in N s",
        "a photo was not captioned: Not an image in a known format",
        "127.0.0.1 GET /nowhere: 404",
    ]
