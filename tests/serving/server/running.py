"""Our connections and what stands before every application, around an application of a test's."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from captioner_serving.server.admission import Admission
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.connections import make_protocol
from captioner_serving.server.door import Door
from captioner_serving.server.log import AccessLog
from captioner_serving.server.metrics import Metrics


@contextlib.contextmanager
def running(app: ASGIApp, config: ServerConfig, said: list[str]) -> Iterator[int]:
    """Run a server in a thread; its port."""
    metrics = Metrics()
    log = AccessLog(Admission(app, config, metrics), metrics, None, said.append)
    door = Door(log, root_path="", trusted_proxies=[])
    options = uvicorn.Config(
        door, log_config=None, log_level="critical", ws="none", http=make_protocol(config)
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
