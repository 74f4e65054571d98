"""Start the command in new processes without importing torch each time.

Importing torch takes three seconds, and hundreds of tests run the command. One process, the
nursery, imports everything once for all workers of a test run. Each command is a fork of it, with
its own arguments, environment, folder, pipes, signals and exit status. The decoding processes of a
command are forks of the command.

Commands that need other settings of the interpreter, or code before exec, start without forks. So
does everything with CAPTIONER_TESTS_FORK=0.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import encodings.cp437  # noqa: F401  # see Twin
import gc
import inspect
import io
import json
import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATH = os.pathsep.join(str(ROOT / part) for part in (".", "training", "serving", "tests/processor"))
_FORKED = {"stdin", "stdout", "stderr", "text", "env", "cwd", "start_new_session"}
# An interpreter reads these once, when it starts.
_FIXED = ("LANG", "LC_ALL", "LC_CTYPE", "LD_PRELOAD", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX")
# The arguments of a private method, by name.
_GIVEN = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[2:]  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
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


def start(
    *arguments: object, file_size: int | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start `captioner ARGUMENTS` without waiting for it.

    Args:
        file_size: the largest size of a file in bytes, to simulate a full disk.
        **options: options of Popen.
    """
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {**defaults, "env": environment(), **options}
    command = [sys.executable, "-m", "captioner", *map(str, arguments)]
    if _can_fork(options):
        return _Forked(command, file_size=file_size, **options)
    if file_size is not None:
        options["preexec_fn"] = lambda: _limit(file_size)
    return subprocess.Popen(command, **options)


def _limit(file_size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))


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


class _Forked(subprocess.Popen[str]):
    """A Popen whose process is a fork of the nursery, which waits for it and sends its status."""

    def __init__(self, command: list[str], *, file_size: int | None, **options: Any) -> None:
        self._file_size = file_size
        super().__init__(command, **options)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        given = dict(zip(_GIVEN, rest, strict=True))
        pipes = [given[name] for name in _PIPES]
        request = {
            "arguments": [os.fsdecode(word) for word in args[3:]],
            "env": {os.fsdecode(k): os.fsdecode(v) for k, v in given["env"].items()},
            "cwd": os.fspath(given["cwd"] or Path.cwd()),
            "session": bool(given["start_new_session"]),
            "file_size": self._file_size,
        }
        theirs_of = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        ours = [number if pipe == -1 else pipe for number, pipe in enumerate(theirs_of)]
        # With packets, the process ID and the status arrive separately.
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            _nursery().ask(request, [*ours, theirs.fileno()])
        self.pid = int(self._status.recv(32))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Wait like waitpid."""
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        told = self._status.recv(32)
        self._status.close()
        return self.pid, int(told or 9)  # nothing: the nursery itself was killed

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


class Twin(subprocess.Popen[bytes]):
    """A decoding process that is a fork of this process.

    Readers of links start real processes, because threads are missing in a fork. A fork deadlocks
    on a module that another thread is importing: reading a zip file imports cp437, so it is
    imported above.
    """

    def _execute_child(self, args: Any, *rest: Any) -> None:
        given = dict(zip(_GIVEN, rest, strict=True))
        pipes = [given[name] for name in _PIPES]
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.environ.clear()
                os.environ.update(given["env"])
                os.dup2(pipes[0], 0)
                os.dup2(pipes[-1], 2)
                first = 3
                for number in sorted(given["pass_fds"]):
                    os.closerange(first, number)
                    first = number + 1
                os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
                sys.stderr = _text(2)
                exec(args[-1], {})
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


# Replaces the module subprocess in captioner_serving.decoding.process.
TWINS = SimpleNamespace(**{**vars(subprocess), "Popen": Twin})


class _Nursery:
    """A connection to the nursery.

    The first connection starts the nursery; child processes find it by an environment variable. It
    ends with the last connection.
    """

    def __init__(self) -> None:
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = None if _ADDRESS in os.environ else self._start()
        self._control.connect("\0" + os.environ[_ADDRESS])
        atexit.register(self.close)

    def _start(self) -> subprocess.Popen[bytes]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind("")  # the system finds a name
            listening.listen()
            started = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from tests.launcher import nurse; nurse({listening.fileno()})",
                ],
                env={**environment(), "PYTHONPATH": PATH},
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )
            os.environ[_ADDRESS] = listening.getsockname()[1:].decode()
        return started

    def ask(self, request: dict[str, Any], descriptors: list[int]) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        data = json.dumps(request).encode(errors="surrogateescape")
        self._control.sendmsg([data], [rights])

    def close(self) -> None:
        self._control.close()
        if self._process:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:  # a stray child of a test still holds a connection
                self._process.kill()
                self._process.wait()


_lock = threading.Lock()
_nurseries: list[_Nursery] = []


def forks() -> bool:
    """Whether commands are forks. Read at each call, because benchmarks change the variable."""
    return os.environ.get("CAPTIONER_TESTS_FORK") != "0" and sys.platform == "linux"


def prepare() -> None:
    """Start the nursery for this process and its children."""
    if forks():
        _nursery()


def _nursery() -> _Nursery:
    with _lock:
        if not _nurseries:
            _nurseries.append(_Nursery())
    return _nurseries[0]


def nurse(descriptor: int) -> None:
    """Run the nursery: import, then fork a command for every request until all connections end."""
    import signal
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
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    askers = [listening.accept()[0]]
    running: dict[int, socket.socket] = {}
    while askers:
        ready, _, _ = select.select([listening, wake, *askers], [], [])
        if wake in ready:
            wake.recv(4096)
            _reap(running)
        if listening in ready:
            askers.append(listening.accept()[0])
        for control in set(askers).intersection(ready):
            if (asked := _receive(control)) is None:
                askers.remove(control)
                control.close()
            elif pid := os.fork():
                for number in asked[1][:3]:
                    os.close(number)
                running[pid] = socket.socket(fileno=asked[1][3])
                with contextlib.suppress(OSError):  # the client has ended
                    running[pid].send(b"%d" % pid)
            else:
                for other in (listening, *askers, wake, woken, *running.values()):
                    other.close()
                _be_the_command(*asked)
    os._exit(0)


def _warm_up() -> None:
    """Build the tiny model's encoder, so that commands find its measurements in a cache."""
    import gradio.blocks
    import torch

    from captioner.model.encoder import Encoder, EncoderConfig

    with torch.random.fork_rng(devices=[]):
        Encoder(EncoderConfig(name="mobilenet_v3_small"))
    gradio.blocks.App = NO_DRAFTS


def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive a request and its descriptors; None if the connection has ended."""
    descriptors = array.array("i")
    size = descriptors.itemsize * 4
    data, rights, _, _ = control.recvmsg(1 << 20, socket.CMSG_SPACE(size))
    if not data:
        return None
    descriptors.frombytes(rights[0][2][:size])
    return json.loads(data.decode(errors="surrogateescape")), descriptors.tolist()


def _reap(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        # The client may have ended.
        with running.pop(pid) as told, contextlib.suppress(OSError):
            told.send(b"%d" % status)


def _be_the_command(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run `python -m captioner ARGUMENTS` in this process, and exit."""
    status = 1
    try:
        _settle(request, descriptors)
        status = _run_module()
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
    import signal

    from captioner_serving.decoding import process as decoding

    atexit._clear()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    if request["session"]:
        os.setsid()
    if request["file_size"] is not None:
        _limit(request["file_size"])
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


def _run_module() -> int:
    import runpy

    try:
        runpy.run_module("captioner", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0
