"""As a Space: the page in a frame of another site, behind a proxy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.serving.server.conftest import SAMPLES, Server, serve
from tests.serving.server.page.conftest import DESK


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    """Another site, whose page shows what stands behind its address's question mark in a frame."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, shown = self.path.partition("?")
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            page = f'<!doctype html><iframe src="{shown}" width=1200 height=800></iframe>'
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def space(site: ThreadingHTTPServer, tmp_path: Path, saved_tiny: Path) -> Iterator[Server]:
    origin = f"http://localhost:{site.server_address[1]}"
    options = ("--space", "--frame-ancestor", origin, "--checkpoint", saved_tiny)
    with serve(tmp_path / "space", *options) as running:
        yield running


@pytest.mark.slow
def test_the_page_captions_in_a_frame_of_another_site(
    site: ThreadingHTTPServer, space: Server, browser: Any
) -> None:
    tab = browser.new_page(**DESK)
    shown = space.url.replace("0.0.0.0", "127.0.0.1")
    tab.goto(f"http://localhost:{site.server_address[1]}/?{shown}/")
    frame = tab.frame_locator("iframe")
    frame.locator('.viewer[data-state="shown"]').wait_for(timeout=60_000)
    frame.locator(".intake .file").set_input_files([SAMPLES / "rocket.jpg", SAMPLES / "coffee.jpg"])
    frame.locator(".strip li[data-state=done]").nth(1).wait_for(timeout=60_000)
    assert frame.locator(".word").count() > 0
    tab.close()
