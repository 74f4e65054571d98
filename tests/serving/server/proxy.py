"""A real nginx before servers, with the configuration of examples/deploy."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import need
from tests.serving.server.conftest import ROOT
from tests.serving.server.running import until

_MAIN = """
pid {folder}/pid;
error_log {folder}/error.log;
daemon off;
master_process off;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/captioner.conf;
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, *urls: str, patience: int = 15) -> Iterator[str]:
    """Run nginx before the servers at these addresses; the address of its page."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (ROOT / "examples/deploy/nginx.conf").read_text()
    servers = "".join(f"server {url.removeprefix('http://')};" for url in urls)
    for stands, instead, times in (
        (r"listen 443 ssl;", f"listen 127.0.0.1:{port};", 1),
        (r"ssl_certificate.*?;", "", 2),
        (r"(?<!# )server 127\.0\.0\.1:7860;", servers, 2),
        (r"timeout 15s;", f"timeout {patience}s;", 3),
    ):
        text, count = re.subn(stands, instead, text)
        assert count == times, stands
    (folder / "captioner.conf").write_text(text)
    (folder / "nginx.conf").write_text(_MAIN.format(folder=folder))
    command = [need("nginx"), "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    process = subprocess.Popen(command)
    try:
        assert until(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, (folder / "error.log").read_text()
        yield f"http://localhost:{port}/captioner/"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
