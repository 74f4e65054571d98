"""An interpreter in which Captioner's own modules see of the system what Windows has.

A process with this folder first on PYTHONPATH runs it at its start, and so do its decoding
processes. Other libraries know Windows themselves: they see the real system.
"""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Availability as the documentation of Python says, and what this project would reach for.
MISSING = {
    os: """chown chroot fchdir fchmod fchown fork forkpty getegid geteuid getgid
        getgroups getloadavg getpgid getpgrp getpriority getuid getxattr killpg lchown
        link lockf mkfifo mknod nice openpty pathconf pipe2 posix_fadvise
        posix_fallocate posix_spawn pread preadv pwrite pwritev readv register_at_fork
        sched_getaffinity sched_setaffinity sched_yield sendfile set_blocking setgid
        setpgid setpriority setsid setuid setxattr statvfs sync sysconf uname wait
        wait3 wait4 writev O_CLOEXEC O_DIRECTORY O_NOATIME O_NOCTTY O_NOFOLLOW
        O_NONBLOCK O_SYNC""",
    signal: """SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 alarm pause
        pthread_kill pthread_sigmask setitimer siginterrupt sigwait sigtimedwait""",
}
MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}


def is_ours(depth: int) -> bool:
    """Whether the first caller outside of pathlib and this file is a module of Captioner's."""
    frame: types.FrameType | None = sys._getframe(depth)
    while frame is not None and frame.f_globals.get("__name__") in ("pathlib", __name__):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("captioner")


class Windows(types.ModuleType):
    """A module without the names that Windows lacks."""

    def __init__(self, module: types.ModuleType, missing: str) -> None:
        super().__init__(module.__name__)
        self._module, self._missing = module, set(missing.split())

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} on Windows has no {name!r}")
        return "nt" if (self.__name__, name) == ("os", "name") else getattr(self._module, name)


PROXIES = {module.__name__: Windows(module, names) for module, names in MISSING.items()}
real_import = builtins.__import__


def import_as_on_windows(name: str, *arguments: Any, **more: Any) -> Any:
    """Import a module; for Captioner's, one of Windows."""
    scope = arguments[0] if arguments else more.get("globals") or {}
    if str((scope or {}).get("__name__")).startswith("captioner"):
        if name in MODULES:
            raise ImportError(f"Windows has no {name}")
        if name in PROXIES:
            return PROXIES[name]
    return real_import(name, *arguments, **more)


def refuse_open_files(call: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse to remove or replace a file that this process has open."""

    def wrapped(*paths: Any, **options: Any) -> Any:
        if is_ours(2):
            files = {os.path.realpath(path) for path in paths}
            for descriptor in Path("/proc/self/fd").iterdir():
                if descriptor.is_symlink() and os.path.realpath(descriptor) in files:
                    raise PermissionError(13, "The process cannot access the file", *paths[:1])
        return call(*paths, **options)

    return wrapped


real_open = os.open
real_popen = subprocess.Popen.__init__


def open_no_folder(path: Any, *arguments: Any, **options: Any) -> int:
    """Open a file; Windows opens no folders."""
    if is_ours(2) and Path(path).is_dir():
        raise PermissionError(13, "Permission denied", path)
    return real_open(path, *arguments, **options)


def start(self: Any, *arguments: Any, **options: Any) -> None:
    """Start a process without what only POSIX can hand on."""
    if is_ours(2) and {"pass_fds", "preexec_fn"} & options.keys():
        raise ValueError("pass_fds and preexec_fn are not supported on Windows")
    real_popen(self, *arguments, **options)


builtins.__import__ = import_as_on_windows
os.open = open_no_folder
os.unlink, os.remove = refuse_open_files(os.unlink), refuse_open_files(os.remove)
os.replace, os.rename = refuse_open_files(os.replace), refuse_open_files(os.rename)
subprocess.Popen.__init__ = start  # type: ignore[method-assign]

# An interpreter runs the first sitecustomize of its path, which is this one.
real_import("tests.processor.sitecustomize")
