"""What `captioner serve` refuses in a sentence, before it listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from captioner_serving.commands.serve import _listen
from captioner_serving.server.config import parse_size
from tests.launcher import Run
from tests.refusals import Refusals, check_refusals

TOKEN = "0123456789abcdef"
FILES = {  # of secrets: what is in them, and who may read them
    "tokens-640": (f"shop:{TOKEN}", 0o640),
    "tokens-604": (f"shop:{TOKEN}", 0o604), "short": ("shop:short", 0o600),
    "twice": (f"shop:{TOKEN}\nshop:{TOKEN[::-1]}", 0o600), "empty": ("\n", 0o600),
}  # fmt: skip
# What follows `captioner serve`.
REFUSED: Refusals = {
    "--port 99999": (2, "port 99999"),
    "--port 0 --dtype float8": (2, "dtype 'float8'"),
    "--port 0 --device quantum": (1, "no such kind of device"),
    "--port 0 --checkpoint /nowhere.safetensors": (1, "there is no checkpoint"),
    "--port 0 --checkpoint a.safetensors --checkpoint a.safetensors --checkpoint b.safetensors": (
        2,
        "--checkpoint a.safetensors is given twice",
    ),
    "--host 203.0.113.7 --port 0": (2, "cannot listen on"),
    "--max-upload plenty": (2, "is not a size"),
    "--max-batch 0": (2, "max_batch 0"),
    "--queue 0": (2, "queue 0"),
    "--root-path captioner/": (2, "root_path is captioner/"),
    "--allowed-host example.org:8443": (2, "without scheme, port and path"),
    "--allowed-host *": (2, "or *.example.org"),
    "--allow-origin example.org": (2, "use an origin"),
    "--allow-origin https://*.example.org": (2, "use an origin"),
    "--frame-ancestor *": (2, "use an origin such as https://example.org"),
    "--trusted-proxy nginx": (2, "--trusted-proxy: 'nginx'"),
    "--token-file tokens-640": (2, "others on this machine can read"),
    "--token-file tokens-604": (2, "others on this machine can read"),
    "--token-file short": (2, "line 1 of --token-file"),
    "--token-file twice": (2, "has the name shop twice"),
    "--token-file empty": (2, "has no line NAME:TOKEN"),
    "--token-file missing": (2, "cannot be read"),
    "--mcp-folder .": (2, "--mcp-folder requires --mcp"),
    "--mcp --mcp-folder . --host 0.0.0.0": (2, "--mcp-folder requires --mcp"),
    "--mcp --mcp-folder no": (2, "there is no folder"),
}


def test_a_setting_that_cannot_work_is_named(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (text, mode) in FILES.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    refused = {f"serve {line}": wanted for line, wanted in REFUSED.items()}
    check_refusals(run_main, refused, tmp_path, secret=TOKEN)
    monkeypatch.setenv("CAPTIONER_AUTH", "")  # of a server that had a password
    former = {"serve --host 203.0.113.7": (2, "CAPTIONER_AUTH is set, but no longer read")}
    check_refusals(run_main, former, tmp_path)


def test_sizes_are_in_units_of_1000() -> None:
    sizes = {"20MB": 20_000_000, "512 kB": 512_000, "1.5gb": 1_500_000_000, "1000": 1000, "7B": 7}
    assert {text: parse_size(text) for text in sizes} == sizes


def test_a_port_in_use_is_reported_before_the_model_is_loaded(
    run_main: Run, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = f"serve --port {taken.getsockname()[1]}"
        said = "(Address already in use): use another --port"
        check_refusals(run_main, {line: (2, said)}, tmp_path, secret="loading")


def test_accepted_connections_send_small_answers_at_once() -> None:
    """Without TCP_NODELAY each answer on a kept connection waits 40 ms for the client's ACK."""
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
