"""The states of a run on disk: from each the run can go on as if it had never stopped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from captioner.errors import DataError, OutputError
from captioner.files import replace_file

__all__ = ["StateFiles", "remove_files"]

_FORMAT = 2
_NAME = re.compile(r"step-(\d+)\.pt")


class StateFiles:
    """The newest states of a run, in a folder of their own.

    A state is either whole or not there, whenever the process or the machine stops.

    Args:
        folder: made when the first state is saved.
        keep: states that stay; older ones are removed after a new one is safe.

    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def paths(self) -> list[Path]:
        """Name the states that are there, the newest first."""
        found = [path for path in self.folder.glob("step-*.pt") if _NAME.fullmatch(path.name)]
        return sorted(found, reverse=True)

    def clear(self) -> None:
        """Remove the states, and nothing else that is there."""
        remove_files(self.folder, "step-*.pt")

    def save(self, state: Mapping[str, Any], *, step: int) -> None:
        """Write a state.

        Raises:
            OutputError: it cannot be written; the states before it are as they were.

        """
        path = self.folder / f"step-{step:09d}.pt"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with replace_file(path) as file:
                torch.save({"format": _FORMAT, **state}, file)
            for old in self.paths()[self.keep :]:
                old.unlink()
        except (OSError, RuntimeError, OutputError) as error:  # torch wraps its writer's errors
            before = self.paths()
            rest = f"the last state, {before[0]}, is whole: " if before else ""
            raise OutputError(
                f"{path} cannot be written ({_reason(error)}); {rest}make room and start the same "
                "command again"
            ) from error

    def load(self) -> dict[str, Any] | None:
        """Read the newest state that is whole; None where there is none.

        Raises:
            DataError: there are states, but none can be read.

        """
        paths = self.paths()
        reason = ""
        for path in paths:
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
            except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError) as error:
                reason = reason or f"{path}: {_reason(error)}"
                continue
            if isinstance(state, dict) and state.get("format") == _FORMAT:
                return state
            reason = reason or f"{path}: another version of Captioner wrote it"
        if paths:
            raise DataError(
                f"no state of this run can be read ({reason}): start again with another --out, "
                "from its best checkpoint with --weights if you like"
            )
        return None


def remove_files(folder: Path, pattern: str) -> None:
    """Remove the files of a pattern, and what a killed process left of one; the rest stays.

    Raises:
        OSError: one cannot be removed.

    """
    for path in (*folder.glob(pattern), *folder.glob(".captioner-*.part")):
        path.unlink(missing_ok=True)


def _reason(error: BaseException) -> str:
    """Find the operating system's word for it below what torch made of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]
