"""Tokens for everything, which no log contains."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from captioner.captioner import Captioner
from captioner_serving.server.config import read_tokens
from tests.serving.server.conftest import ROOT, SAMPLES, Server
from tests.serving.server.running import serving

TOKENS = "shop:0123456789abcdef\n\n desk:Abc-._~+/0456789== \n"
WHO = ("anyone", "0123456789abcdef")
ROUTES = [
    "/", "/api/health/ready", "/metrics", "/docs", "/openapi.json", "/config", "/nonsense",
    "/gradio_api/info", "/page/samples/coffee", "/page/static/viewer.js",
    "/static-offline-docs/swagger-ui.css",
]  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, saved_tiny: Path) -> Iterator[str]:
    path = tmp_path_factory.mktemp("secret") / "tokens"
    path.write_text(TOKENS)
    path.chmod(0o600)
    tokens = read_tokens(str(path))
    with serving(Captioner.from_pretrained(saved_tiny), tokens=tokens) as url:
        yield url


@pytest.fixture
def client(guarded: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded, timeout=300) as made:
        yield made


def test_nothing_is_open_without_a_token(client: httpx.Client) -> None:
    for route in ROUTES:
        answer = client.get(route)
        assert answer.status_code == 401, route
        assert answer.headers["www-authenticate"].startswith("Basic ")
    for route in ("/api/caption", "/api/sheet", "/gradio_api/upload", "/gradio_api/queue/join"):
        assert client.post(route, files={"image": b"x"}).status_code == 401
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert client.get("/gradio_api/queue/data", headers=upgrade).status_code == 401
    client.auth = WHO
    assert client.get("/").status_code == 200
    assert client.get("/metrics").status_code == 200
    photo = (SAMPLES / "coffee.jpg").read_bytes()
    assert client.post("/api/caption", files={"image": photo}).status_code == 200


def test_the_log_identifies_requests_but_no_photo_and_no_secret(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(TOKENS)
    (tmp_path / "tokens").chmod(0o600)
    server = start("--log", "-", "--token-file", tmp_path / "tokens")
    with server.client(auth=WHO) as client:
        client.get("/")
        client.post("/api/caption?token=hush", files={"image": ("secret-name.jpg", b"x")})
        files = {"files": ("secret-name.jpg", b"x")}
        client.post("/gradio_api/upload", files=files)
    bearer = {"Authorization": "Bearer Abc-._~+/0456789=="}  # the second token
    with server.client(headers=bearer) as client:
        assert client.get("/page/samples/coffee").status_code == 200
    log = server.said(0, r'"user": "desk", .* "/page/samples/coffee", "status": 200')
    assert '"path": "/api/caption", "status": 400' in log and '"user": "shop"' in log
    for hidden in ("secret-name", "hush", "anyone", "Basic", "456789"):
        assert hidden not in log
    # Two signals at once end an idle server without a word of it.
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    assert server.stop(signal.SIGINT) == 0
    assert server.lines[-1].endswith("Ctrl-C again stops at once\n")


def test_a_refusal_reaches_a_client_that_first_sends_everything(guarded: str) -> None:
    bearer = {"Authorization": f"Bearer {WHO[1]}"}
    for headers, size, status in (
        ({}, 8_000_000, 401),
        ({"Origin": "https://example.com"}, 8_000_000, 403),
        (bearer, 40_000_000, 413),
    ):
        request = urllib.request.Request(f"{guarded}/api/caption", bytes(size), headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=300)
        with refused.value:
            assert refused.value.code == status


def test_a_token_is_a_bearer_or_the_password_of_anyone(client: httpx.Client) -> None:
    token = WHO[1]
    for guess in [("shop", "guess"), ("", ""), (token, ""), (token, "shop"), (WHO[0], "ü")] * 5:
        assert client.get("/metrics", auth=guess).status_code == 401, guess
    for header in (f"Bearer {token}x", "Bearer", f"Basic {token}", "Basic ü", "Bearer ü"):
        answer = client.get("/metrics", headers={"Authorization": header.encode()})
        assert answer.status_code == 401, header
    for user in ("shop", "", "desk"):
        assert client.get("/metrics", auth=(user, token)).status_code == 200
    for scheme in ("Bearer", "bearer"):
        answer = client.get("/metrics", headers={"Authorization": f"{scheme} {token}"})
        assert answer.status_code == 200


def test_a_liveness_probe_needs_no_token(guarded: str) -> None:
    """The command of the container's health check, run against a server with tokens."""
    dockerfile = (ROOT / "examples" / "deploy" / "Dockerfile").read_text()
    (code,) = re.findall(r'"(import httpx; .*)"\]', dockerfile)
    check = code.replace("http://127.0.0.1:7860", guarded)
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
    stopped = code.replace("http://127.0.0.1:7860", "http://127.0.0.1:9")
    quiet = {"stderr": subprocess.DEVNULL, "check": False}
    assert subprocess.run([sys.executable, "-c", stopped], **quiet).returncode != 0
    assert httpx.get(f"{guarded}/api/health/live", timeout=300).json() == {"status": "live"}


def test_a_terminal_gets_a_line_a_failure(server: Server) -> None:
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
    said = [line.split(" ", 2)[2].strip() for line in lines]
    assert said == [
        "127.0.0.1 POST /api/caption: 415",
        "127.0.0.1 GET /nowhere: 404",
    ]
