"""The state of a run on disk: all that is needed to go on as if it had never stopped."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from captioner.errors import DataError, OutputError

__all__ = ["Progress", "StateFiles", "capture_random", "restore_random"]

_FORMAT = 1
_NAME = re.compile(r"step-(\d+)\.pt")


@dataclass(kw_only=True)
class Progress:
    """How far a run is. Everything here and in the model stands as after the last step."""

    stage: int = 0
    epoch: int = 0  # of the stage
    step: int = 0  # of the epoch
    total: int = 0  # steps of the whole run
    best: float = -1.0  # the highest CIDEr on validation so far
    stage_best: float = -1.0  # of this stage
    stale: int = 0  # epochs since stage_best
    log_bytes: int = 0  # how long the log is
    finished: bool = False


class StateFiles:
    """The newest states of a run, in a folder of their own.

    Each is written beside its place, forced to disk, and only then moved there: a state is either
    whole or not there, whenever the process or the machine stops.

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

    def save(self, state: Mapping[str, Any], *, step: int) -> None:
        """Write a state.

        Raises:
            OutputError: it cannot be written; the states before it are as they were.

        """
        path = self.folder / f"step-{step:09d}.pt"
        temporary = path.with_suffix(".part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                torch.save({"format": _FORMAT, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            self._sync_folder()
            for old in self.paths()[self.keep :]:
                old.unlink()
        except (OSError, RuntimeError) as error:  # torch wraps what its writer cannot write
            temporary.unlink(missing_ok=True)
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
            except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
                reason = reason or f"{path}: {error}"
                continue
            if isinstance(state, dict) and state.get("format") == _FORMAT:
                return state
            reason = reason or f"{path}: of another version"
        if paths:
            raise DataError(
                f"no state of this run can be read ({reason}): remove {self.folder} to start anew"
            )
        return None

    def _sync_folder(self) -> None:
        """Force the new name to disk too."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reason(error: BaseException) -> str:
    """Find the operating system's word for it below what torch made of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]


def capture_random(device: torch.device) -> dict[str, Any]:
    """Take down every generator of random numbers of this process."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": (version, words, gauss),
        "numpy": (str(kind), torch.tensor(keys.astype(np.int64)), position, has_gauss, cached),
    }


def restore_random(state: Mapping[str, Any], device: torch.device) -> None:
    """Set every generator of random numbers of this process as it was."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
