"""The files of a run: names, locks, settings and writing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from captioner.closing import Closing
from captioner.errors import ConfigError, OutputError
from captioner.shared.files import digest

FORMAT = 4
"""The version of the settings file."""

AUXILIARY = (".errors.jsonl", ".run.json", ".written.jsonl")
"""The ends of the names of a run's files without captions."""

_REMEDY = "Finished photos are kept: fix the cause, then run the same command to resume"


class RunFiles:
    """The files that a run writes, except sidecars; see docs/batch.md."""

    def __init__(self, output: Path) -> None:
        def with_suffix(suffix: str) -> Path:
            return output.with_name(output.name + suffix)

        self.output = output
        self.records = output if output.suffix == ".jsonl" else with_suffix(".journal.jsonl")
        self.errors, self.state, self.written = map(with_suffix, AUXILIARY)
        self.all = [output, self.records, self.errors, self.state, self.written]
        self.folder = Path(os.path.realpath(output.absolute().parent))

    def part(self, kind: str = "") -> str:
        """Return the name of a temporary file, unique to this output."""
        return f".captioner-{digest(os.path.realpath(self.output)).hex()}{kind}.part"


class RunLock(Closing):
    """A lock on a file, held until it is closed or the process ends.

    The lock is a hidden file beside it, because a locked file cannot be read on Windows.

    Raises OutputError: another run holds the lock.
    """

    def __init__(self, path: Path) -> None:
        name = f".captioner-{digest(os.path.realpath(path)).hex()}.lock"
        self._file = path.with_name(name)
        self._lock = FileLock(self._file, blocking=False)
        try:
            self._lock.acquire()  # not on a file that a finished run has just removed
        except Timeout:
            raise OutputError(
                f"another run is writing to {path.name.removesuffix('.journal.jsonl')}: "
                "wait until it has finished, or choose another output"
            ) from None

    @property
    def is_held(self) -> bool:
        """Whether the lock was not released."""
        return self._lock.is_locked

    def close(self) -> None:
        """Remove the lock file and release the lock."""
        if self.is_held:
            with suppress(OSError):  # Windows keeps files that are open
                self._file.unlink()
            self._lock.release()


def read_state(path: Path) -> dict[str, Any] | None:
    """Read the settings and exports of a run; return None if the file does not exist.

    Raises OutputError: the file is damaged, or from another version.
    """
    try:
        state = json.loads(path.read_bytes())
        if isinstance(state["settings"], dict) and state["format"] == FORMAT:
            return {"settings": state["settings"], "exported": list(state["exported"])}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        pass
    raise OutputError(
        f"{path} is damaged or from another version of Captioner: restore it, resume with that "
        "version, or choose another output"
    )


def check_settings(output: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if the settings of two runs differ; the detail names every difference."""
    changed = [
        f"{_option(key)} was {_value(before.get(key))} and is {_value(settings.get(key))}"
        for key in {**before, **settings}
        if before.get(key) != settings.get(key)
    ]
    if changed:
        raise ConfigError(
            f"{output} has records with other settings: {'; '.join(changed)}. "
            "Use the same settings, choose another output, or start over with --restart"
        )


def _option(key: str) -> str:
    """Return the command-line option for a setting."""
    words = {"model": "the model of --checkpoint", "wording": "--template or --replace"}
    return words.get(key, f"--{key.replace('_', '-')}")


def _value(value: Any) -> str:
    if value is None or value == "" or value is False:
        return "not given"
    return "given" if value is True else value if isinstance(value, str) else json.dumps(value)


@contextmanager
def resumable(output: Path) -> Iterator[None]:
    """Turn an OSError in the block into an OutputError that explains how to resume."""
    try:
        yield
    except OSError as error:
        name = f" ({error.filename})" if error.filename else ""
        raise OutputError(
            f"{output} cannot be written{name}: {error.strerror}. {_REMEDY}"
        ) from error
    except OutputError as error:
        raise with_remedy(error) from error.__cause__


def with_remedy(error: OutputError) -> OutputError:
    """Add to an error how to resume, if an OSError caused it and the advice is missing."""
    if not isinstance(error.__cause__, OSError) or _REMEDY in error.detail:
        return error
    return OutputError(f"{error}. {_REMEDY}")


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all bytes to an unbuffered file."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0
