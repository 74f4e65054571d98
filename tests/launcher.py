"""Start the command in new processes without importing torch each time.

Importing torch takes three seconds, and hundreds of tests run the command. One process, the
nursery, imports everything once for all workers of a test run. Each command is a fork of it, with
its own arguments, environment, folder, pipes, signals and exit status. The decoding processes of a
command are forks of the command.

Commands that need other settings of the interpreter, or code before exec, start without forks. So
does everything with CAPTIONER_TESTS_FORK=0.
"""

from __future__ import annotations

import atexit
import contextlib
import encodings.cp437  # noqa: F401  # see Twin
import gc
import io
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

ROOT = Path(__file__).resolve().parent.parent
PATH = os.pathsep.join(str(ROOT / part) for part in (".", "training", "serving", "tests/processor"))
_FORKED = {"stdin", "stdout", "stderr", "text", "env", "cwd", "start_new_session"}
# An interpreter reads these once, when it starts.
_FIXED = ("LANG", "LC_ALL", "LC_CTYPE", "LD_PRELOAD", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX")
_ADDRESS = "CAPTIONER_TESTS_NURSERY"  # environment variable: the address of the nursery's socket
_PRELOADED = (
    "captioner.captioner",
    "captioner_training.train",
    "captioner_serving.batch.run",
    "captioner_serving.server.app",
    "captioner.model.lstm",
    "captioner_training.evaluation.evaluate",
    "torch._dynamo",  # imported by optimizers; takes three seconds
    "nltk",  # imported by scores; takes more than a second
    "pi_heif",
)
# Replaces App in gradio.blocks, which builds an application at each step of making a page. Only the
# application that gradio.routes builds at the end is served.
NO_DRAFTS = SimpleNamespace(create_app=lambda *_, **__: None)


Run = Callable[..., subprocess.CompletedProcess[str]]
"""The type of the fixtures run_main and run_captioner, which run `captioner ARGUMENTS`."""


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a checkout in which warnings are errors."""
    return {**os.environ, "PYTHONPATH": PATH, "PYTHONWARNINGS": "error", **more}


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start `captioner ARGUMENTS` with options of Popen; do not wait for its end."""
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {**defaults, "env": environment(), **options}
    command = [sys.executable, "-m", "captioner", *map(str, arguments)]
    if _can_fork(options):
        return cast("subprocess.Popen[str]", _Forked(command, **options))
    return subprocess.Popen(command, **options)


def run(
    *arguments: object, timeout: float = 300, input: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `captioner ARGUMENTS` to its end."""
    options = {"stdin": subprocess.DEVNULL if input is None else subprocess.PIPE, **options}
    with start(*arguments, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _can_fork(options: dict[str, Any]) -> bool:
    given = options["env"]
    same = all(given.get(name) == os.environ.get(name) for name in _FIXED)
    python = {name for name in given if name.startswith("PYTHON") and name not in os.environ}
    return (
        forks()
        and options.keys() <= _FORKED
        and same
        and python <= {"PYTHONPATH", "PYTHONWARNINGS", "PYTHONUNBUFFERED"}
        and given.get("PYTHONPATH") == PATH
        and given.get("PYTHONWARNINGS") in (None, "error")
    )


class _Process:
    """The methods of Popen for a process whose end makes a file readable."""

    stdin: IO[str] | None = None
    stdout: IO[str] | None = None
    stderr: IO[str] | None = None
    returncode: int | None = None

    def __init__(self, args: list[str]) -> None:
        self.args, self._lock = args, threading.Lock()

    def _follow(self, pid: int, ended: Any, read_status: Callable[[], int]) -> None:
        self.pid, self._ended, self._read_status = pid, ended, read_status

    def wait(self, timeout: float | None = None) -> int:
        with contextlib.suppress(ValueError):  # closed, because another thread has the status
            if self.returncode is None and not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._lock:
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(self._read_status())
                self._ended.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Forked(_Process):
    """A process forked by the nursery, which sends its exit status."""

    def __init__(self, command: list[str], **options: Any) -> None:
        super().__init__(command)
        request = {
            "arguments": command[3:],
            "env": options["env"],
            "cwd": os.fspath(options.get("cwd") or Path.cwd()),
            "session": options.get("start_new_session", False),
        }
        names = ("stdin", "stdout", "stderr")
        theirs, ours = zip(
            *(_stream(at, options.get(name)) for at, name in enumerate(names)), strict=True
        )
        self.stdin, self.stdout, self.stderr = ours
        # With packets, the process ID and the status arrive separately.
        status, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = [*theirs, other.detach()]
        data = json.dumps(request).encode(errors="surrogateescape")
        socket.send_fds(_nursery(), [data], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        # Nothing is received if the nursery itself was killed.
        self._follow(int(status.recv(32)), status, lambda: int(status.recv(32) or signal.SIGKILL))

    def communicate(
        self, input: str | None = None, timeout: float | None = None
    ) -> list[str | None]:
        readers = ThreadPoolExecutor(2)
        pipes = (self.stdout, self.stderr)
        texts = [None if pipe is None else readers.submit(_drain, pipe) for pipe in pipes]
        readers.shutdown(wait=False)
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or "")
        self.wait(timeout)
        return [None if text is None else text.result(timeout) for text in texts]

    def __enter__(self) -> _Forked:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def _drain(pipe: IO[str]) -> str:
    with pipe:
        return pipe.read()


def _stream(number: int, kind: Any) -> tuple[int, IO[str] | None]:
    """Return a descriptor for the process, and this end of a pipe."""
    if kind == subprocess.PIPE:
        reading, writing = os.pipe()
        return (reading, os.fdopen(writing, "w")) if number == 0 else (writing, os.fdopen(reading))
    if kind == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    given = number if kind is None else kind
    return os.dup(given if isinstance(given, int) else given.fileno()), None


class Twin(_Process):
    """A decoding process that is a fork of this process.

    Readers of links start real processes, because threads are missing in a fork. A fork deadlocks
    on a module that another thread is importing: reading a zip file imports cp437, so it is
    imported above.
    """

    def __init__(
        self, command: list[str], *, env: dict[str, str], pass_fds: list[int], stderr: int, **_: Any
    ) -> None:
        super().__init__(command)
        if pid := os.fork():
            ended = io.FileIO(os.pidfd_open(pid))
            return self._follow(pid, ended, lambda: os.waitpid(pid, 0)[1])
        status = 1
        try:
            os.environ.clear()
            os.environ.update(env)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(stderr, 2)
            first = 3
            for number in sorted(pass_fds):
                os.closerange(first, number)
                first = number + 1
            os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            sys.stderr = _text(2)
            exec(command[-1], {})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


# Replaces the module subprocess in captioner_serving.decoding.process.
TWINS = SimpleNamespace(**{**vars(subprocess), "Popen": Twin})


def forks() -> bool:
    """Whether commands are forks. Read at each call, because benchmarks change the variable."""
    return os.environ.get("CAPTIONER_TESTS_FORK") != "0" and sys.platform == "linux"


def prepare() -> None:
    """Start the nursery for this process and its children."""
    if forks():
        _nursery()


@cache
def _nursery() -> socket.socket:
    """Connect to the nursery.

    The first process starts it; child processes find it by an environment variable.
    """
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    atexit.register(control.close)
    if _ADDRESS not in os.environ:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind("")  # the system finds a name
            listening.listen()
            code = f"from tests.launcher import nurse; nurse({listening.fileno()})"
            started = subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment(),
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )
            atexit.register(started.wait)
            atexit.register(started.kill)  # called first
            os.environ[_ADDRESS] = listening.getsockname()[1:].decode()
    control.connect("\0" + os.environ[_ADDRESS])
    return control


def nurse(descriptor: int) -> None:
    """Run the nursery: import, then fork a command for every request until all connections end."""
    from importlib import import_module

    listening = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    if sys.path[0] == "":  # that of -c
        sys.path.pop(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a command imports them under its own filters, or not
        for name in _PRELOADED:
            import_module(name)
    _warm_up()
    gc.collect()
    gc.freeze()  # otherwise garbage collection in commands would copy all pages
    askers = [listening.accept()[0]]
    running: dict[int, tuple[int, socket.socket]] = {}  # process and client by its pidfd
    while askers:
        ready, _, _ = select.select([listening, *askers, *running], [], [])
        for ended in running.keys() & set(ready):
            pid, client = running.pop(ended)
            os.close(ended)
            _send(client, os.waitpid(pid, 0)[1])
            client.close()
        if listening in ready:
            askers.append(listening.accept()[0])
        for control in set(askers).intersection(ready):
            data, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not data:
                askers.remove(control)
                control.close()
            elif pid := os.fork():
                for number in descriptors[:3]:
                    os.close(number)
                client = socket.socket(fileno=descriptors[3])
                running[os.pidfd_open(pid)] = pid, client
                _send(client, pid)
            else:
                for other in (listening, *askers, *(client for _, client in running.values())):
                    other.close()
                for number in running:
                    os.close(number)
                _be_the_command(json.loads(data.decode(errors="surrogateescape")), descriptors)
    os._exit(0)


def _send(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the client has ended
        client.send(b"%d" % number)


def _warm_up() -> None:
    """Build the tiny model's encoder, so that commands find its measurements in a cache."""
    import gradio.blocks
    import torch

    from captioner.model.encoder import Encoder, EncoderConfig

    with torch.random.fork_rng(devices=[]):
        Encoder(EncoderConfig(name="mobilenet_v3_small"))
    gradio.blocks.App = NO_DRAFTS


def _be_the_command(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run `python -m captioner ARGUMENTS` in this process, and exit."""
    from captioner.__main__ import main

    status: Any = 1
    try:
        _settle(request, descriptors)
        status = main()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            status = status or 120
        os._exit(status)


def _settle(request: dict[str, Any], descriptors: list[int]) -> None:
    from captioner_serving.decoding import process as decoding

    atexit._clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # read TMPDIR again
    if not any("://" in word for word in request["arguments"]):
        decoding.subprocess = TWINS
    if "PYTHONWARNINGS" not in request["env"]:
        warnings.filters[:] = [entry for entry in warnings.filters if entry[0] != "error"]  # type: ignore[index]
        sys.warnoptions.clear()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout, sys.stderr = (_text(number) for number in (1, 2))
    sys.argv = [str(ROOT / "captioner" / "__main__.py"), *request["arguments"]]
    sys.path.insert(0, request["cwd"])  # as -m does


def _text(number: int) -> io.TextIOWrapper:
    """Open a standard stream as the interpreter does."""
    errors = "backslashreplace" if number == 2 else "strict"
    buffer = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    lines = number == 2 or os.isatty(number)
    return io.TextIOWrapper(buffer, errors=errors, line_buffering=lines)
