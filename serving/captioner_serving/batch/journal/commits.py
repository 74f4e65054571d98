"""The log of commits beside an output: what is done, in a form that is read in a moment."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from captioner.errors import ConfigError, OutputError
from captioner.files import new_part

__all__ = ["Commit", "CommitLog", "Entry", "check_settings", "settings_of", "write_all"]

_FORMAT = 1
_WHOLE = {"whole": True}
_ENTRY = struct.Struct("<16s16sBQ")


class Entry(NamedTuple):
    """A photo that is done.

    name, content: digests of its name and of its bytes (zeros where they could not be read).
    file, offset: which of the journal's files has its record, and where the line begins.
    """

    name: bytes
    content: bytes
    file: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What one line of the log says.

    ends: the length of each of the journal's files, in bytes.
    retry: the errors before this line are void: their photos are to be tried again.
    """

    ends: Sequence[int]
    batch_size: int | None
    entries: Sequence[Entry] = ()
    retry: bool = False


class CommitLog:
    """A file with the settings of a run in its first line and a commit in each that follows.

    `part` is what the run calls a file that is being written, see `replace_file`; None where the
    first line does not say it, or has not been read yet.

    Raises:
        OutputError: another run holds it.
        OSError: it cannot be opened.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part: str | None = None
        self.whole = False  # the last run left nothing beside what it committed
        self._end: int | None = None  # of what was read; what lies beyond it is to be cut off
        self._file = _locked(path)
        while not _is_at(self._file, path):  # a run that was refused has removed it meanwhile
            self._file.close()
            self._file = _locked(path)

    def close(self, *, whole: bool = False) -> None:
        """Close the file and release its lock; a file with nothing in it is removed.

        Args:
            whole: note that all that was written is committed: what is found beyond it later is
                somebody else's, and not the end of a run that was killed.

        """
        if whole and not self._file.closed and self._end is None:
            with suppress(OSError):  # a full disk: the next run knows less, and goes on
                self._append(_WHOLE)
        # While it is locked, or the file would be another run's by now.
        if not self._file.closed and not os.fstat(self._file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
        self._file.close()

    def clear(self) -> None:
        """Forget everything."""
        self._file.truncate(0)

    def read(self) -> Iterator[dict[str, Any] | Commit | str]:
        """Give the settings, then commits and digests of outputs, but for a torn last line.

        A last line that says so sets `whole`: it holds until more is written (`settle`).

        Raises:
            OutputError: it is another's, or damaged.

        """
        end = 0
        with open(self.path, "rb") as file:
            for number, raw in enumerate(file):
                if (line := _parse(raw)) is None:
                    if number == 0 and raw.endswith(b"\n"):
                        raise _foreign(self.path)
                    if file.read(1):  # what a power cut tears is the last line
                        raise _damaged(self.path, number + 1)
                    break
                if number == 0:
                    self.part = _part(line)
                    yield _settings(self.path, line)
                elif line == _WHOLE:
                    if not file.peek(1):
                        self.whole = True
                        break
                elif isinstance(line.get("exported"), str):
                    yield line["exported"]
                else:
                    yield self._commit(line, number + 1)
                end += len(raw)
        self._end = end

    def settle(self) -> None:
        """Cut off what does not hold any more: from here on, lines are written."""
        if self._end is not None:
            self._file.truncate(self._end)
            self._end = None

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write the first line."""
        self.part = new_part()
        self._append({"format": _FORMAT, "settings": settings, "part": self.part})

    def begin_once(self, settings: Mapping[str, Any]) -> None:
        """Write the first line, if there is none yet, or half of one."""
        if settings_of(self.path) is None:
            self.clear()
            self.begin(settings)

    def append(self, commit: Commit) -> None:
        """Write a commit; when this returns it is on the disk."""
        packed = b"".join(_ENTRY.pack(*entry) for entry in commit.entries)
        line = {"ends": list(commit.ends), "batch_size": commit.batch_size}
        if commit.retry:
            line["retry"] = True
        self._append({**line, "entries": base64.b64encode(packed).decode()})

    def append_export(self, digest: str) -> None:
        """Write which output is about to take its name."""
        self._append({"exported": digest})

    def _append(self, line: Mapping[str, Any]) -> None:
        end = os.fstat(self._file.fileno()).st_size
        try:
            write_all(self._file, json.dumps(line).encode() + b"\n")
            os.fsync(self._file.fileno())
        except BaseException:  # the next line would be glued to half of this one
            with suppress(OSError):
                self._file.truncate(end)
            raise

    def _commit(self, line: Mapping[str, Any], number: int) -> Commit:
        try:
            packed = base64.b64decode(line["entries"])
            return Commit(
                ends=list(map(int, line["ends"])),
                batch_size=line["batch_size"],
                entries=[Entry(*fields) for fields in _ENTRY.iter_unpack(packed)],
                retry=line.get("retry", False),
            )
        except (KeyError, TypeError, ValueError, struct.error) as error:
            raise _damaged(self.path, number) from error


def _locked(path: Path) -> BinaryIO:
    # Unbuffered: closing must not write, or it could fail on a full disk.
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by CommitLog
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise OutputError(
            f"another run is writing to {path.name.removesuffix('.progress.jsonl')}: "
            "wait for it to finish, or choose another output"
        ) from error
    return file


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _damaged(path: Path, number: int) -> OutputError:
    return OutputError(
        f"{path} is damaged in line {number}: put it back, or start over with --restart"
    )


def settings_of(path: Path) -> dict[str, Any] | None:
    """Read the settings of the run that a log is of; None where there is none yet.

    Raises:
        OutputError: it is another's, or cannot be read.

    """
    try:
        with open(path, "rb") as file:
            raw = file.readline()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{path} cannot be read: {error.strerror}") from error
    line = _parse(raw)
    if line is None and raw.endswith(b"\n"):
        raise _foreign(path)
    return None if line is None else _settings(path, line)


def _settings(path: Path, line: Mapping[str, Any]) -> dict[str, Any]:
    if line.get("format") != _FORMAT or not isinstance(line.get("settings"), dict):
        raise _foreign(path)
    settings: dict[str, Any] = line["settings"]
    return settings


def _part(line: Mapping[str, Any]) -> str | None:
    part = line.get("part")  # nothing else is ever removed
    return part if isinstance(part, str) and re.fullmatch(r"\.captioner-\w+\.part", part) else None


def _foreign(path: Path) -> OutputError:
    return OutputError(
        f"{path} was not written by this version of Captioner: go on with the one that "
        "did, or choose another output"
    )


# Settings that runs of older versions did not write down, as those runs go on with them.
_ADDED = {"different_around": "and", "check_attention": False, "exact": True, "style": ""}


def check_settings(output: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to mix records of two kinds in one output.

    Raises:
        ConfigError: the settings differ; the detail names each.

    """
    now = json.loads(json.dumps(now))
    before = {**{key: value for key, value in _ADDED.items() if key in now}, **before}
    changed = [
        f"{_option(key)} was {_value(before.get(key))} and is {_value(now.get(key))}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise ConfigError(
            f"{output} was begun with different settings: {'; '.join(changed)}. "
            "Use the same settings, choose another output, or start over with --restart"
        )


def _option(key: str) -> str:
    """Name a setting as it is typed; the model is what a checkpoint holds."""
    words = {"model": "the model of --checkpoint", "wording": "--template, --prefix or --replace"}
    return words.get(key, f"--{key.replace('_', '-')}")


def _value(value: Any) -> str:
    if value is None or value == "":
        return "not given"
    if isinstance(value, bool):
        return "given" if value else "not given"
    return value if isinstance(value, str) else json.dumps(value)


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write to an unbuffered file, which may take a part at a time."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _parse(raw: bytes) -> dict[str, Any] | None:
    """Read a line, or say that it was torn: the run ended while it was written."""
    if not raw.endswith(b"\n"):
        return None
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None
