"""`captioner serve`: the page and the HTTP API, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from captioner.errors import ConfigError, MissingExtraError
from captioner.inference.device import add_machine_arguments
from captioner.shared.files import writing
from captioner.shared.paths import expanded
from captioner_serving.commands.options import given_fields

if TYPE_CHECKING:
    from captioner_serving.server.app import Application
    from captioner_serving.server.config import ServerConfig

HELP = "Serve the web page and the HTTP API."
EXAMPLES = """examples:
  captioner serve
  captioner serve --host 0.0.0.0 --token-file tokens.txt     # one NAME:TOKEN per line
  captioner serve --root-path /captioner --allowed-host example.org --trusted-proxy 127.0.0.1

The page is at /, the API's documentation at /docs, Prometheus metrics at /metrics. Ctrl-C
or SIGTERM finishes accepted requests, then exits with 0. After 30 s or a second Ctrl-C it cuts off
the rest and exits with 1."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--host", help="default: 127.0.0.1 (this machine only)")
    add("--port", type=int, help="default: 7860; 0: any free port")
    add("--checkpoint", action="append", metavar="MODEL",
        help="file, run folder or USER/MODEL (Hub); default: bundled; "
        "may be repeated, to compare models")  # fmt: skip
    add_machine_arguments(parser)
    add("--log", metavar="FILE", help="access log, one JSON line per request; -: standard error")
    add = parser.add_argument_group("limits").add_argument
    add("--max-upload", metavar="SIZE", help="largest request; default: 20MB")
    add("--minimum-trust", type=float, metavar="P", help="captions with less trust are errors")
    add("--max-pixels", type=int, metavar="N",
        help="refuse photos with more pixels; default: 100 million")  # fmt: skip
    add("--max-batch", type=int, metavar="N", help="images per batch; default: 16")
    add("--queue", type=int, metavar="N", help="waiting images; others get status 503; default: 64")
    add("--max-connections", type=int, metavar="N", help="open connections; default: 500")
    add = parser.add_argument_group("access").add_argument
    add("--token-file", metavar="FILE",
        help="require one of the tokens of this file, one NAME:TOKEN per line")  # fmt: skip
    add("--allowed-host", action="append", dest="allowed_hosts", metavar="NAME",
        help="accept this Host header too; may be repeated")  # fmt: skip
    add("--root-path", metavar="PATH", help="path prefix behind a proxy, such as /captioner")
    add("--frame-ancestor", action="append", default=[], dest="frame_ancestors", metavar="ORIGIN",
        help="allow this origin to embed the page; may be repeated")  # fmt: skip
    add("--allow-origin", action="append", dest="allowed_origins", metavar="ORIGIN",
        help="allow this origin to call the API (CORS); may be repeated")  # fmt: skip
    add("--allow-urls", action="store_true", help="caption photos by URL, from public hosts")
    add("--mcp", action="store_true", help="serve MCP, for assistants")
    add("--mcp-folder", metavar="FOLDER", help="folder whose photos assistants may name by path")
    add("--trusted-proxy", action="append", default=[], dest="trusted_proxies", metavar="ADDRESS",
        help="trust X-Forwarded-For and X-Forwarded-Proto of this proxy; "
        "may be repeated")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return 1 if requests were cut off."""
    from captioner_serving.server.config import read_tokens

    config = _config(arguments)
    checkpoints: list[str] = arguments.checkpoint or []
    if repeated := [name for at, name in enumerate(checkpoints) if name in checkpoints[:at]]:
        raise ConfigError(f"--checkpoint {repeated[0]} is given twice: use another checkpoint")
    if config.mcp and find_spec("mcp") is None:
        raise MissingExtraError("captioner serve --mcp", "mcp")
    tokens = read_tokens(arguments.token_file)
    log = _open_log(arguments.log)
    _check_certificates()
    with _listen(config.host, config.port) as listener:
        application = _load(arguments, config, tokens, log)
        try:
            cut_off = _serve(application, config, listener)
        finally:
            application.close()
    if cut_off:
        _say(f"stopped; requests cut off: {cut_off}")
    return 1 if cut_off else 0


def _check_certificates() -> None:
    """Check the certificates, which Gradio loads when it is imported."""
    from captioner.certificates import CertificatesError, tls_context

    try:
        tls_context()
    except CertificatesError as error:
        raise ConfigError(str(error)) from error


def _config(arguments: argparse.Namespace) -> ServerConfig:
    from captioner_serving.server.config import ServerConfig, parse_size

    options = given_fields(ServerConfig, arguments)
    if size := options.get("max_upload"):
        options["max_upload"] = parse_size(size)
    if folder := options.get("mcp_folder"):
        options["mcp_folder"] = expanded(folder).resolve()
    return ServerConfig(**options)


def _load(
    arguments: argparse.Namespace, config: ServerConfig, tokens: dict[str, str], log: TextIO | None
) -> Application:
    _say("loading the model ...")
    import torch

    from captioner.captioner import Captioner
    from captioner.shared.paths import bundled_checkpoint, checkpoint_file, sample_photos
    from captioner_serving.server.app import Application

    names = arguments.checkpoint or [bundled_checkpoint()]
    checkpoints = [checkpoint_file(name) for name in names]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # in this thread; the model's thread uses all `threads`
    captioners = [
        Captioner.from_pretrained(
            checkpoint, device=arguments.device, dtype=arguments.dtype, max_pixels=config.max_pixels
        )
        for checkpoint in checkpoints
    ]
    if len({captioner.name for captioner in captioners}) < len(captioners):
        for captioner, name in zip(captioners, names, strict=True):
            captioner.name = str(name)
    return Application(
        *captioners,
        config=config,
        threads=threads,
        tokens=tokens,
        samples=sample_photos(),
        log=log,
        say=lambda text: _say(f"{datetime.now():%H:%M:%S} {text}"),
    )


def _say(text: str) -> None:
    with suppress(OSError):  # a closed pipe or full disk must not fail a request
        print(f"captioner: {text}", file=sys.stderr, flush=True)


def _serve(application: Application, config: ServerConfig, listener: socket.socket) -> int:
    """Serve until a signal; return how many requests were cut off."""
    import uvicorn

    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    # Disabled at the end, because it logs a traceback for each request that is cut off.
    log = logging.getLogger("uvicorn.error")

    class Server(uvicorn.Server):
        cut_off = 0

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)  # installs the signal handlers
            _say(f"the page is at {url}/, the API at {url}/docs; Ctrl-C stops")

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            application.refuse()
            super().handle_exit(sig, frame)
            log.disabled |= self.force_exit

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            _say("finishing accepted requests; Ctrl-C again stops at once")
            await super().shutdown(sockets)

        async def _wait_tasks_to_complete(self) -> None:
            # From Python 3.12 on uvicorn waits for open connections even after a second signal.
            waiting = asyncio.ensure_future(super()._wait_tasks_to_complete())
            try:
                while not (self.force_exit or waiting.done()):
                    await asyncio.wait({waiting}, timeout=0.1)
            finally:
                log.disabled |= not waiting.done()
                waiting.cancel()
                self.cut_off = len(self.server_state.tasks)

    # uvicorn raises the signals again after a clean shutdown; ignore them.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    options = uvicorn.Config(
        application.asgi,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        http="h11",
        forwarded_allow_ips=list(config.trusted_proxies),
        limit_concurrency=config.max_connections,
        timeout_graceful_shutdown=30,
    )
    server = Server(options)
    server.run(sockets=[listener])
    for number in (signal.SIGINT, signal.SIGTERM):
        # When Python exits, it resets handlers, but not SIG_IGN.
        signal.signal(number, signal.SIG_IGN)
    return server.cut_off


def _listen(host: str, port: int) -> socket.socket:
    """Open the port before the model is loaded.

    Raises ConfigError: the port is in use, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # Connections inherit this; asyncio sets it only on sockets that it made itself. Without
        # it, a client that keeps its connection waits 40 ms for each answer.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        # The part after " (while" repeats the address.
        reason, _, _ = (error.strerror or str(error)).partition(" (while")
        raise ConfigError(
            f"cannot listen on {host}:{port} ({reason}): "
            "use another --port, or --port 0 for any free one"
        ) from error


def _open_log(name: str | None) -> TextIO | None:
    if name is None:
        return None
    if name == "-":
        return sys.stderr
    with writing(f"--log {name}"):
        return Path(name).open("a", encoding="utf-8")
