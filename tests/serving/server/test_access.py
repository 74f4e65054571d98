"""One password for everything, from a file or the environment, and in no log."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import launcher
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
        return start("--log", "-", CAPTIONER_AUTH=SECRET)
    (tmp_path / "secret").write_text(SECRET + "\n")
    return start("--log", "-", "--auth-file", tmp_path / "secret")


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
    server = start("--log", "-")
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


def test_no_header_of_a_client_gives_it_more_guesses(start: Callable[..., Server]) -> None:
    server = start(CAPTIONER_AUTH=SECRET)
    statuses = []
    with server.client(auth=("ann", "guess")) as client:
        for number in range(12):
            headers = {"X-Forwarded-For": f"203.0.113.{number}"}
            statuses.append(client.get("/api/health", headers=headers).status_code)
    assert statuses == [401] * 10 + [429] * 2


def test_behind_a_trusted_proxy_each_client_has_its_own_guesses(
    start: Callable[..., Server],
) -> None:
    server = start("--trusted-proxy", "127.0.0.1", CAPTIONER_AUTH=SECRET)

    def status(address: str, who: tuple[str, str]) -> int:
        with server.client(auth=who) as client:
            return client.get("/metrics", headers={"X-Forwarded-For": address}).status_code

    guesses = [status(f"2001:db8::{number:x}", ("ann", "guess")) for number in range(11)]
    assert guesses == [401] * 10 + [429]  # they share a /64
    assert status("2001:db8::ffff", WHO) == 429
    assert status("2001:db8:1::1", WHO) == 200


def test_a_hash_is_as_good_as_the_password(start: Callable[..., Server], tmp_path: Path) -> None:
    made = launcher.run("serve", "--hash-password", input=f"{SECRET}\n")
    assert made.returncode == 0 and made.stdout.startswith("ann:$scrypt$ln=14,r=8,p=1$")
    (tmp_path / "secret").write_text(made.stdout)
    (tmp_path / "secret").chmod(0o600)
    server = start("--auth-file", tmp_path / "secret")
    assert not any("warning" in line for line in server.lines)
    with server.client(auth=WHO) as client:
        assert [client.get("/api/health").status_code for _ in range(3)] == [200] * 3
    with server.client(auth=("ann", "guess")) as client:
        assert [client.get("/metrics").status_code for _ in range(11)] == [401] * 10 + [429]


@pytest.mark.parametrize(
    "secret", ["ann:$scrypt$nonsense", "ann:$scrypt$ln=30,r=8,p=1$c2FsdHNhbHQ$aGFzaA"]
)
def test_a_hash_that_cannot_be_computed_is_refused(
    run_captioner: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, secret: str
) -> None:
    (tmp_path / "secret").write_text(secret)
    result = run_captioner("serve", "--auth-file", tmp_path / "secret")
    assert result.returncode == 2 and "--hash-password" in result.stderr


def test_a_secret_that_others_can_read_is_warned_of(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o644)
    server = start("--auth-file", tmp_path / "secret")
    assert any("warning: others" in line and "chmod 600" in line for line in server.lines)


def test_a_terminal_gets_a_line_a_caption_or_failure(start: Callable[..., Server]) -> None:
    server = start()
    photo = (SAMPLES / "coffee.jpg").read_bytes()
    with server.client() as client:
        for path in ("/", "/config", "/theme.css", "/api/health"):
            client.get(path)
        client.post("/api/caption", files={"image": ("secret-name.jpg", photo)})
        client.post("/api/caption", files={"image": ("secret-name.jpg", b"x")})
        client.get("/nowhere")
    server.stop()
    said = [line.split(" ", 2)[2].strip() for line in server.lines if " page is at " not in line]
    said = [re.sub(r"\d\.\d\d", "N", line) for line in said if not line.startswith("the model")]
    assert said == [
        "captioned a photo in N s",
        "a photo was not captioned: Not an image in a known format",
        "127.0.0.1 GET /nowhere: 404",
    ]
