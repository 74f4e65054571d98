"""The page as a Gradio demo: launched, shared, in a notebook, mounted, and as a Space."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio_client
import httpx
import pytest
from fastapi import FastAPI

from captioner.captioner import Captioner
from captioner.errors import ConfigError
from captioner_serving import gradio_demo
from captioner_serving.demo import Demo
from captioner_serving.server.config import ServerConfig
from tests.conftest import ROOT, make_tiny
from tests.serving.server.conftest import SAMPLES, run_async
from tests.serving.server.running import listening, until

pytestmark = pytest.mark.slow

PHOTO = SAMPLES / "coffee.jpg"


@cache
def tiny_captioner() -> Captioner:
    return Captioner(make_tiny(), device="cpu")


def make_demo(**limits: Any) -> Demo:
    return gradio_demo(tiny_captioner(), **limits)


@contextlib.contextmanager
def launched(limits: dict[str, Any], **options: Any) -> Iterator[httpx.Client]:
    """Launch a demo of the tiny model; a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        demo = make_demo(**limits)

        async def launch() -> str:  # in a loop, or Gradio makes one and leaves it open
            options.setdefault("quiet", True)
            _, url, _ = demo.launch(server_port=port, prevent_thread_lock=True, **options)
            return url

        try:
            with httpx.Client(base_url=run_async(launch()), timeout=300) as client:
                yield client
        finally:
            demo.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[httpx.Client]:
    with launched({"max_upload": 1_000_000}) as client:
        yield client


def test_a_launched_demo_shows_the_page_and_answers_the_api(plain: httpx.Client) -> None:
    assert "page/static/page.js" in plain.get("/").text
    answer = plain.post("/api/caption", files={"image": PHOTO.read_bytes()})
    assert answer.json()["records"][0]["caption"]


def test_a_launched_demo_has_the_checks_of_the_server(plain: httpx.Client) -> None:
    assert plain.get("/gradio_api/file=/etc/hostname").status_code == 404
    call = {"data": [{"path": "/etc/hostname"}, *[None] * 6], "session_hash": "x"}
    assert plain.post("/gradio_api/queue/join", json=call).status_code == 403
    for path, key in (("/api/caption", "image"), ("/gradio_api/upload", "files")):
        assert plain.post(path, files={key: bytes(3_000_000)}).status_code == 413
    assert plain.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert plain.get("/").headers["x-frame-options"] == "SAMEORIGIN"


def test_a_shared_demo_answers_with_its_password_for_its_link_and_no_other_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gradio.networking.setup_tunnel", lambda **_: "https://abc.gradio.live")
    user = ("ann", "secret")
    wanted = {"abc.gradio.live": 200, "gradio.live.evil.example": 400}
    with launched({}, share=True, auth=user) as client:
        assert "https://abc.gradio.live" in capsys.readouterr().out
        assert client.get("/").status_code == 401
        assert client.get("/", auth=("ann", "guessed")).status_code == 401
        for name, status in wanted.items():
            assert client.get("/", headers={"Host": name}, auth=user).status_code == status, name


def test_a_notebook_shows_the_page_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    display = SimpleNamespace(HTML=str, Javascript=str, display=shown.append)
    core = SimpleNamespace(get_ipython=lambda: "notebook")
    for name, module in {"": display, ".display": display, ".core": core}.items():
        monkeypatch.setitem(sys.modules, f"IPython{name}", module)
    monkeypatch.setitem(sys.modules, "IPython.core.getipython", core)
    with launched({}) as client:
        assert f'<iframe src="{client.base_url}' in shown[0]
        headers = client.get("/").headers
    for frame in ("http://localhost:*", "https://*.googleusercontent.com"):  # Jupyter, Colab
        assert frame in headers["content-security-policy"]
    assert "x-frame-options" not in headers


def test_a_mounted_demo_lies_below_its_path() -> None:
    demo, app = make_demo(), FastAPI()

    @app.get("/own")
    def own() -> str:
        return "mine"

    async def mount() -> None:
        demo.mount_to(app, "/captions/")

    run_async(mount())
    try:
        with listening(app, ServerConfig()) as port:
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=300) as client:
                assert client.get("/own").json() == "mine"
                assert "page/static/page.js" in client.get("/captions/").text
                files = {"image": PHOTO.read_bytes()}
                answer = client.post("/captions/api/caption", files=files)
                assert answer.status_code == 200
                assert client.get("/api/caption").status_code == 404
                path = "/captions/gradio_api/file=/etc/hostname"
                assert client.get(path).status_code == 404
            remote = gradio_client.Client(f"{url}/captions", verbose=False, analytics_enabled=False)
            try:
                record = remote.predict(gradio_client.handle_file(PHOTO), api_name="/caption")
            finally:
                remote.close()
            assert record["caption"] == answer.json()["records"][0]["caption"]
    finally:
        demo.close()


def test_unknown_options_and_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="unexpected keyword argument 'queu'"):
        gradio_demo(queu=1)
    with pytest.raises(ConfigError, match="queue 0 is out of range"):
        gradio_demo(queue=0)
    demo = make_demo()
    with pytest.raises(ConfigError, match="no option max_file_size"):
        demo.launch(max_file_size=1)
    with pytest.raises(ConfigError, match="a name and a token"):
        demo.launch(auth=("ann", ""))


def test_the_space_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",  # Gradio does not flush the line with the URL
        "GRADIO_SERVER_NAME": "0.0.0.0",
        "GRADIO_SERVER_PORT": str(port),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "training", ROOT / "serving"))),
    }
    # A shell's background job ignores SIGINT, and passes that on.
    as_a_terminal = ("env", "--default-signal=INT")
    command = [*as_a_terminal, sys.executable, ROOT / "examples" / "space" / "app.py"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert re.search(rf"http://0\.0\.0\.0:{port}", process.stdout.readline())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            headers = {"Host": "ann-captioner.hf.space"}
            assert until(lambda: client.get("/api/health/ready", headers=headers).is_success)
            page = client.get("/", headers=headers)
            assert "https://huggingface.co" in page.headers["content-security-policy"]
            answer = client.post("/api/caption", files={"image": PHOTO.read_bytes()})
            assert answer.json()["records"][0]["caption"].startswith("a cup of coffee")
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.communicate()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
