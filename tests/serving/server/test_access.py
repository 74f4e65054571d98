"""One password for everything, from a file or the environment, and in no log."""

from __future__ import annotations

import base64
import io
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from captioner.checkpoint import Checkpoint
from captioner.predictor import Captioner
from captioner_serving.server.access import Access, Credentials
from captioner_serving.server.door import Door
from tests import launcher
from tests.serving.server.conftest import SAMPLES, Server, run_async, serve
from tests.serving.server.running import Clock, serving

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SECRET = "ann:correct horse: battery"
WHO = ("ann", "correct horse: battery")
GUESS = ("ann", "guess")
ROUTES = [
    "/", "/api/health", "/api/live", "/api/ready",
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
def by_hash(tmp_path_factory: pytest.TempPathFactory, saved_tiny: Path) -> Iterator[Server]:
    """A server behind a proxy that has a hash from the environment in place of the password."""
    folder = tmp_path_factory.mktemp("hash")
    made = launcher.run("serve", "--hash-password", input=f"{SECRET}\n")
    assert made.returncode == 0 and made.stdout.startswith("ann:$scrypt$ln=14,r=8,p=1$")
    options = ("--log", "-", "--trusted-proxy", "127.0.0.1", "--checkpoint", saved_tiny)
    with serve(folder, *options, CAPTIONER_AUTH=made.stdout.strip()) as running:
        yield running


def client_at(server: Server, address: str, who: tuple[str, str] = WHO) -> httpx.Client:
    """A client of an address of its own, for guesses are counted by address."""
    transport = httpx.HTTPTransport(local_address=address)
    return server.client(transport=transport, auth=who)


@pytest.fixture(params=["by_file", "by_hash"], ids=["file", "environment"])
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


def test_guessing_is_slowed_down(by_file: Server) -> None:
    with client_at(by_file, "127.0.0.2", GUESS) as client:
        statuses = [client.get("/api/health").status_code for _ in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        assert client.get("/").headers["retry-after"] == "60"
        assert "wait a minute" in client.get("/").json()["detail"]
    with client_at(by_file, "127.0.0.2") as client:
        assert client.get("/api/health").status_code == 429  # the address, right or wrong


def test_the_log_tells_requests_apart_and_no_photo(by_file: Server) -> None:
    before = len(by_file.lines)
    with client_at(by_file, "127.0.0.4") as client:
        client.get("/")
        client.post("/api/caption?token=hush", files={"image": ("secret-name.jpg", b"x")})
        files = {"files": ("secret-name.jpg", b"x")}
        client.post("/gradio_api/upload", files=files)
    log = by_file.said(before, r'"path": "/gradio_api/upload"')
    assert '"path": "/api/caption", "status": 400' in log
    assert "secret-name" not in log and "hush" not in log


def test_no_header_of_a_client_gives_it_more_guesses(by_file: Server) -> None:
    statuses = []
    with client_at(by_file, "127.0.0.3", GUESS) as client:
        for number in range(12):
            headers = {"X-Forwarded-For": f"203.0.113.{number}"}
            statuses.append(client.get("/api/health", headers=headers).status_code)
    assert statuses == [401] * 10 + [429] * 2


def test_behind_a_trusted_proxy_each_client_has_its_own_guesses(by_hash: Server) -> None:
    def status(address: str, who: tuple[str, str]) -> int:
        with by_hash.client(auth=who) as client:
            return client.get("/metrics", headers={"X-Forwarded-For": address}).status_code

    guesses = [status(f"2001:db8::{number:x}", GUESS) for number in range(11)]
    assert guesses == [401] * 10 + [429]  # they share a /64
    assert status("2001:db8::ffff", WHO) == 429
    assert status("2001:db8:1::1", WHO) == 200


def test_a_hash_is_as_good_as_the_password(by_hash: Server) -> None:
    assert not any("warning" in line for line in by_hash.lines)
    with client_at(by_hash, "127.0.0.2") as client:
        assert [client.get("/api/health").status_code for _ in range(3)] == [200] * 3
    with client_at(by_hash, "127.0.0.2", GUESS) as client:
        assert [client.get("/metrics").status_code for _ in range(11)] == [401] * 10 + [429]


@pytest.mark.parametrize("name", ["by_file", "by_hash"])
def test_the_right_password_of_another_name_is_wrong(
    name: str, request: pytest.FixtureRequest
) -> None:
    for user in ("eve", "", "Ann", "ann "):
        with client_at(request.getfixturevalue(name), "127.0.0.5", (user, WHO[1])) as client:
            assert client.get("/metrics").status_code == 401, user


def test_guesses_are_forgotten_in_a_minute_and_no_sooner(
    tiny_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    credentials = Credentials(user=WHO[0], password=WHO[1])
    with serving(Captioner(tiny_checkpoint), credentials=credentials) as url:

        def status(who: tuple[str, str]) -> int:
            return httpx.get(f"{url}/metrics", auth=who, timeout=60).status_code

        assert [status(GUESS) for _ in range(10)] == [401] * 10
        assert status(WHO) == 429
        clock.ahead += 45
        assert status(WHO) == 429
        clock.ahead += 16
        assert status(WHO) == 200


def test_guesses_are_counted_for_ten_thousand_clients() -> None:
    """The last that guessed; somebody who has many addresses gets no more memory for it."""
    credentials = Credentials(user=WHO[0], password=WHO[1])
    access = Access(PlainTextResponse("fine"), credentials)
    door = Door(access, root_path="")
    wrong = (b"authorization", b"Basic " + base64.b64encode(b"ann:guess"))

    async def status(number: int) -> int:
        client = (f"10.1.{number // 256}.{number % 256}", 1)
        scope = {"type": "http", "scheme": "http", "method": "GET", "path": "/metrics"}
        answers: list[Message] = []

        async def send(message: Message) -> None:
            answers.append(message)

        async def receive() -> Message:
            raise AssertionError("nothing more is read")

        await door({**scope, "client": client, "headers": [wrong]}, receive, send)
        return int(answers[0]["status"])

    async def guess() -> list[int]:
        for client in (0, 1):
            assert [await status(client) for _ in range(11)] == [401] * 10 + [429]
        for client in range(2, 10_001):
            await status(client)
        return [await status(1), await status(0)]

    assert run_async(guess()) == [429, 401]


@pytest.mark.parametrize(
    "secret", ["ann:$scrypt$nonsense", "ann:$scrypt$ln=30,r=8,p=1$c2FsdHNhbHQ$aGFzaA"]
)
def test_a_hash_of_another_kind_is_refused(run_main: Run, tmp_path: Path, secret: str) -> None:
    (tmp_path / "secret").write_text(secret)
    result = run_main("serve", "--auth-file", tmp_path / "secret")
    assert result.returncode == 2 and "--hash-password" in result.stderr


def test_a_password_that_is_no_text_is_a_sentence(
    run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"ann:\xff\n")))
    result = run_main("serve", "--hash-password")
    assert result.returncode == 2
    assert result.stderr == "captioner: --hash-password reads UTF-8 text: this line is none\n"


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
