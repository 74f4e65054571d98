"""Tables of refused commands: the command line, the exit status and a part of the message."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.launcher import Run

Refusals = Mapping[str, tuple[int, str]]


def check_refusals(run: Run, table: Refusals, folder: Path, *, secret: str = "Traceback") -> None:
    """Run each line: it has its status and message, prints nothing, and changes no file.

    secret: a text that no message may contain, besides "Traceback".
    """
    before, others = _state(folder), []
    for line, (status, words) in table.items():
        result = run(*shlex.split(line))
        is_said = words in result.stderr and "Traceback" not in result.stderr
        if (result.returncode, result.stdout, is_said) != (status, "", True):
            others.append((line, result.returncode, result.stdout, result.stderr))
        assert secret not in result.stderr and _state(folder) == before, line
    assert not others, others


def _state(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
