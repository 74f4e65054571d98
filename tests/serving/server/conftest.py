"""A server as a separate process, and requests for it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests import launcher

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "assets" / "samples"
T = TypeVar("T")


@dataclass
class Server:
    """A running `captioner serve`: its address, and its lines on standard error."""

    process: subprocess.Popen[str]
    folder: Path  # its temporary files
    url: str = ""
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread = field(default_factory=threading.Thread)  # of the lines

    def client(self, **options: object) -> httpx.Client:
        # The server has no https, and loading certificates is slow.
        return httpx.Client(base_url=self.url, timeout=300, verify=False, **options)

    def uploads(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]

    def said(self, start: int, last: str) -> str:
        """Wait until a line matches `last`; return the lines from index `start` on."""
        deadline = time.monotonic() + 300
        while not any(re.search(last, line) for line in self.lines[start:]):
            assert time.monotonic() < deadline, self.lines[start:]
            time.sleep(0.01)
        return "".join(self.lines[start:])

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.wait(300)
        self.reader.join(300)
        return self.process.returncode


@contextlib.contextmanager
def serve(
    folder: Path, *arguments: object, cwd: Path | None = None, **variables: str
) -> Iterator[Server]:
    folder.mkdir(exist_ok=True)
    environment = launcher.environment(TMPDIR=str(folder), **variables)
    del environment["PYTHONWARNINGS"]  # Gradio leaves event loops open
    process = launcher.start(
        "serve", "--port", "0", *arguments, stdout=None, stdin=None, env=environment, cwd=cwd
    )
    server = Server(process, folder)

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            server.lines.append(line)
            if match := re.search(r"page is at (http://\S+)/,", line):
                server.url = match[1]

    server.reader = threading.Thread(target=read, daemon=True)
    server.reader.start()
    try:
        deadline = time.monotonic() + 300
        while not server.url:
            if process.poll() is not None or time.monotonic() > deadline:
                server.reader.join(5)
                raise RuntimeError("".join(server.lines))
            time.sleep(0.02)
        yield server
    finally:
        process.kill()
        process.wait()
        server.reader.join()
        assert process.stderr is not None
        process.stderr.close()


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; in a thread, for playwright has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, saved_tiny: Path) -> Iterator[Server]:
    """A server with the tiny model, which the tests share."""
    with serve(tmp_path_factory.mktemp("server"), "--checkpoint", saved_tiny) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path, saved_tiny: Path) -> Iterator[Callable[..., Server]]:
    """Start a server of the test's own."""
    with contextlib.ExitStack() as stack:

        def run(*arguments: object, **variables: str) -> Server:
            if "--checkpoint" not in arguments:
                arguments = ("--checkpoint", saved_tiny, *arguments)
            return stack.enter_context(serve(tmp_path / "tmp", *arguments, **variables))

        yield run


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
