"""The event loop stays free while requests of the largest size are read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner.captioner import Captioner
from captioner_serving.server.config import ServerConfig
from tests.serving.server.running import serving

pytestmark = pytest.mark.slow

LARGEST = ServerConfig().max_upload
LIMIT = 0.3  # seconds
TEXT = "a" * (LARGEST - 1000)
ACCEPT = "application/json, text/event-stream"
DATA = "data:image/jpeg;base64,"
FORM = "multipart/form-data; boundary=b"
PART = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x.jpg"\r\n\r\n'


class Watch:
    """Middleware that measures the longest time between two turns of the loop.

    It counts the processor time of the loop's thread; the wall time depends on other processes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.longest = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        turning = asyncio.create_task(self._turn())
        try:
            await self.app(scope, receive, send)
            await asyncio.sleep(0)  # measures the last turn
        finally:
            turning.cancel()

    async def _turn(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - before)


@pytest.fixture(scope="module")
def watched(saved_tiny: Path) -> Iterator[tuple[httpx.Client, Watch]]:
    watches: list[Watch] = []

    def watch(app: ASGIApp) -> ASGIApp:
        watches.append(Watch(app))
        return watches[0]

    with (
        serving(Captioner.from_pretrained(saved_tiny), ServerConfig(mcp=True), wrap=watch) as url,
        httpx.Client(base_url=url, timeout=300) as client,
    ):
        client.get("/api/health")
        yield client, watches[0]


PHOTO_CALL = {"name": "describe_image", "arguments": {"image": TEXT}}
BODIES: dict[str, tuple[str, object]] = {
    "a prompt": ("/api/generate", {"prompt": TEXT}),
    "base64": ("/api/generate", {"images": [TEXT]}),
    "no base64": ("/api/generate", {"images": ["!" + TEXT]}),
    "lines of base64": ("/api/generate", {"images": ["a\n" * (LARGEST // 3 - 1000)]}),
    "escapes": ("/api/generate", {"images": ["\u00e9" * (LARGEST // 6 - 1000)]}),
    "many images": ("/api/generate", {"images": ["a" * 2000] * 9_000}),
    "a data URL of a chat": (
        "/v1/chat/completions",
        {"messages": [{"content": [{"image_url": {"url": DATA + TEXT}}]}]},
    ),
    "a photo of an assistant": (
        "/gradio_api/mcp/",
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": PHOTO_CALL},
    ),
    "commas": ("/api/generate", b"[" + b"1," * (LARGEST // 2 - 10) + b"1]"),
    "commas of an assistant": ("/gradio_api/mcp/", b"[" + b"1," * (LARGEST // 2 - 10) + b"1]"),
    "no JSON": ("/api/generate", b"[" * LARGEST),
    "line breaks": ("/api/caption", PART + b"\r\n" * (LARGEST // 2) + b"\r\n--b--\r\n"),
    "boundaries": ("/api/caption", PART + b"\r\n--bb" * (LARGEST // 6) + b"\r\n--b--\r\n"),
    "parts": ("/api/caption", (PART + b"x\r\n") * (LARGEST // (len(PART) + 3))),
}


@pytest.mark.parametrize("name", BODIES)
def test_no_large_request_stalls_the_loop(watched: tuple[httpx.Client, Watch], name: str) -> None:
    client, watch = watched
    path, content = BODIES[name]
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    kind = FORM if body.startswith(PART) else "application/json"
    watch.longest = 0.0
    answer = client.post(path, content=body, headers={"Content-Type": kind, "Accept": ACCEPT})
    assert 400 <= answer.status_code < 500 or answer.json()["result"]["isError"], answer.text[:300]
    assert len(answer.content) < 2000
    assert 0 < watch.longest < LIMIT
