"""Local web servers for downloads in tests."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers requests, and keeps no log."""

    def log_message(self, *_: Any) -> None: ...


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@contextmanager
def hosting(
    served: Path | Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve a folder, or answer by a handler; the server's address."""
    handler = partial(_Files, directory=str(served)) if isinstance(served, Path) else served
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
