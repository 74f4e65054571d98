"""Servers in the test's own process, over sockets, around a model of the test's own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp

from captioner.captioner import Captioner
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.service import CaptionService, start_reader
from tests.conftest import missing
from tests.launcher import NO_DRAFTS
from tests.serving.server.conftest import run_async


def until(true: Callable[[], Any], seconds: float = 300.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


def bindable(address: str) -> str:
    """Return an address of this machine; if it has none such, see `missing`."""
    try:
        socket.create_server((address, 0)).close()
    except OSError as error:
        missing(f"{address} cannot be bound ({error}); on macOS: ifconfig lo0 alias {address}")
    return address


def client_at(url: str | httpx.URL, address: str = "127.0.0.1", **options: Any) -> httpx.Client:
    """Return a client whose requests come from an address of this machine."""
    transport = httpx.HTTPTransport(local_address=bindable(address), verify=False)
    return httpx.Client(base_url=url, transport=transport, timeout=300, **options)


class Clock:
    """The clock of this process, which can be advanced.

    When a test ends it goes back. A server that then still runs would wait for as long, because its
    event loop has this clock.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, real = 0.0, time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: real() + self.ahead)


@contextlib.contextmanager
def serving(
    captioner: Captioner,
    config: ServerConfig | None = None,
    *others: Captioner,
    tokens: dict[str, str] | None = None,
    samples: dict[str, Path] | None = None,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> Iterator[str]:
    """Run the whole server around a model; its URL. `wrap` adds a middleware of the test."""
    from captioner_serving.server.app import Application  # gradio takes two seconds to import

    config = ServerConfig() if config is None else config

    async def build() -> Application:  # in a loop, or Gradio makes one and leaves it open
        return Application(
            captioner, *others, config=config, threads=1, tokens=tokens, samples=samples
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradio.blocks.App", NO_DRAFTS)
        patch.setattr("captioner_serving.server.service._FETCHING", 2)  # of six processes
        application = run_async(build())
    try:
        with listening(wrap(application.asgi), config) as port:
            yield f"http://127.0.0.1:{port}"
            application.refuse()
    finally:
        application.close()


@contextlib.contextmanager
def service_of(
    captioner: Captioner, metrics: Metrics | None = None, *, threads: int = 1
) -> Iterator[CaptionService]:
    """A service with its own decoding pool, without HTTP."""
    metrics, config = metrics or Metrics(), ServerConfig()
    reader = start_reader(captioner, config)
    service = CaptionService(captioner, config, metrics, reader, threads=threads)
    try:
        yield service
    finally:
        service.batcher.close()
        reader.close()


@contextlib.contextmanager
def listening(app: ASGIApp, config: ServerConfig) -> Iterator[int]:
    """Run an application in a thread; its port."""
    options = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        ws="none",
        http="h11",
        forwarded_allow_ips=list(config.trusted_proxies),
        limit_concurrency=config.max_connections,
    )
    server = uvicorn.Server(options)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
