#!/usr/bin/env python3
"""An exported model as a small service: its page, POST /api/caption and GET /api/health.

    python serve.py --port 8000
    curl --data-binary @photo.jpg http://127.0.0.1:8000/api/caption

It stands beside caption.py in the folder of an exported model. The body of a request is one photo,
and the answer its record. One photo is captioned at a time; others wait.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import sys
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from caption import Captioner

MOST_BYTES = 20_000_000
HERE = Path(__file__).resolve().parent


class Handler(SimpleHTTPRequestHandler):
    """Answers one request."""

    timeout = 30  # seconds that a visitor may send nothing

    def __init__(self, *given: Any, captioner: Captioner, turn: Lock, **named: Any) -> None:
        self.captioner, self.turn = captioner, turn
        super().__init__(*given, directory=str(HERE), **named)

    def end_headers(self) -> None:
        """Isolate the page, so that its WebAssembly may have threads."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def do_GET(self) -> None:
        """Give a file of the page, or say that the service is well."""
        if self.path == "/api/health":
            self._answer(HTTPStatus.OK, {"status": "ok"})
        else:
            super().do_GET()

    def list_directory(self, path: Any) -> None:  # noqa: ARG002
        """List nothing."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """Caption the photo that is the body."""
        if self.path != "/api/caption":
            return self._refuse(HTTPStatus.NOT_FOUND, "There is only /api/caption")
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            return self._refuse(HTTPStatus.LENGTH_REQUIRED, "Send the photo with its length")
        if int(length) > MOST_BYTES:
            return self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The photo has more than {MOST_BYTES:,} bytes"
            )
        photo = io.BytesIO(self.rfile.read(int(length)))
        try:
            with self.turn:
                record = self.captioner.caption(photo)
        except (OSError, ValueError, SyntaxError):
            detail = "The body is no photo that can be read"
            return self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
        return self._answer(HTTPStatus.OK, {"records": [record]})

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        self.close_connection = True  # what was sent may lie there still
        problem = {"status": status, "title": status.phrase, "detail": detail}
        self._answer(status, problem, kind="application/problem+json")

    def _answer(
        self, status: HTTPStatus, answer: dict[str, Any], *, kind: str = "application/json"
    ) -> None:
        data = json.dumps(answer, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> int:
    """Serve until a signal says that it is over."""
    parser = argparse.ArgumentParser(description="Serve the page and /api/caption.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    handler = partial(Handler, captioner=Captioner(HERE), turn=Lock())
    server = ThreadingHTTPServer((arguments.host, arguments.port), handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"http://{arguments.host}:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 130
    finally:
        server.server_close()


if __name__ == "__main__":
    sys.exit(main())
