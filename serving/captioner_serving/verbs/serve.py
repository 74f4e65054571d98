"""`captioner serve`: the page and the HTTP API, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from captioner.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from captioner_serving.server.app import Application
    from captioner_serving.server.config import Credentials, ServerConfig

HELP = "Serve the page that shows where each word comes from, and the HTTP API beside it."
EXAMPLES = """examples:
  captioner serve
  captioner serve --port 8000 --checkpoint mine.safetensors
  captioner serve --host 0.0.0.0 --auth-file secret.txt     # one line: USER:PASSWORD
  curl -F image=@photo.jpg -F attention=true http://127.0.0.1:7860/api/caption

The page is at /, the API's documentation at /docs, Prometheus metrics at /metrics. A password
can also come from the environment variable CAPTIONER_AUTH. Ctrl-C or SIGTERM finishes the
captions that were accepted, and ends with status 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    parser.add_argument("--port", type=int, default=7860, help="default: 7860; 0: any free one")
    parser.add_argument("--checkpoint", metavar="FILE", help="default: the bundled one")
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="default: auto")
    parser.add_argument(
        "--max-upload", default="20MB", metavar="SIZE", help="of one request; default: 20MB"
    )
    parser.add_argument(
        "--max-batch", type=int, default=16, metavar="N", help="images decoded together (16)"
    )
    parser.add_argument(
        "--queue", type=int, default=64, metavar="N", help="images waiting before a 503 (64)"
    )
    parser.add_argument("--auth-file", metavar="FILE", help="ask for this USER:PASSWORD")
    parser.add_argument(
        "--root-path", default="", metavar="PATH", help="where a proxy shows the server: /captioner"
    )
    parser.add_argument(
        "--keep", type=float, default=540, metavar="S", help="seconds that a page's photo is kept"
    )
    parser.add_argument(
        "--log", default="-", metavar="FILE", help="the access log, JSON lines; default: stderr"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal says stop."""
    from captioner_serving.server.config import ServerConfig, parse_size, read_credentials

    config = ServerConfig(
        host=arguments.host,
        port=arguments.port,
        max_upload=parse_size(arguments.max_upload),
        max_batch=arguments.max_batch,
        queue=arguments.queue,
        root_path=arguments.root_path,
        keep=arguments.keep,
    )
    credentials = read_credentials(arguments.auth_file)
    log = _open_log(arguments.log)
    with _listen(config.host, config.port) as listener:
        application = _load(arguments, config, credentials, log)
        try:
            host = f"[{config.host}]" if ":" in config.host else config.host
            url = f"http://{host}:{listener.getsockname()[1]}"
            _say(f"the page is at {url}/, the API at {url}/docs; Ctrl-C ends")
            _serve(application, listener)
        finally:
            application.close()
    return 0


def _load(
    arguments: argparse.Namespace,
    config: ServerConfig,
    credentials: Credentials | None,
    log: TextIO,
) -> Application:
    _say("loading the model ...")
    from captioner.bundled import sample_photos
    from captioner.predictor import Captioner
    from captioner_serving.server.app import Application

    captioner = Captioner.from_pretrained(arguments.checkpoint, device=arguments.device)
    return Application(captioner, config, credentials=credentials, samples=sample_photos(), log=log)


def _say(text: str) -> None:
    print(f"captioner: {text}", file=sys.stderr, flush=True)


def _serve(application: Application, listener: socket.socket) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            application.refuse()
            super().handle_exit(sig, frame)

    # uvicorn raises the signals again when it has ended in good order; they have done their work.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    options = uvicorn.Config(
        application.asgi,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=30,
    )
    Server(options).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """Take the port before the model is loaded.

    Raises:
        ConfigError: it is taken, or the host is not this machine's.

    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}): "
            "try another --port, or 0 for any free one"
        ) from error


def _open_log(name: str) -> TextIO:
    if name == "-":
        return sys.stderr
    try:
        return Path(name).open("a", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"--log {name} cannot be written: {error.strerror}") from error
