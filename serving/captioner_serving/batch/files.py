"""The files of a run: their names, and how they are opened and locked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from captioner.closing import Closing
from captioner.errors import ConfigError, OutputError
from captioner.files import digest

__all__ = [
    "RunFiles",
    "RunLock",
    "check_free",
    "resumable",
    "size_of",
    "with_remedy",
    "write_all",
]

_REMEDY = "What was done stays: fix that, and the same command resumes there"


class RunFiles:
    """What a run writes, except sidecars and maps.

    Attributes:
        output: OUTPUT itself.
        review: the unsure records, if they are kept apart.
        records: OUTPUT if that has a record a line, else OUTPUT.journal.jsonl.
        errors: OUTPUT.errors.jsonl, the photos that failed; only if there are any.
        state: OUTPUT.run.json, the settings.
        written: OUTPUT.written.jsonl, the log of sidecars and maps.
        beside: files that a pattern may match beside the records, and that hold no captions.
        all: all of them.
        folder: the absolute folder of the output.

    Raises ConfigError: the review is one of the others.
    """

    def __init__(self, output: Path, review: Path | None = None) -> None:
        def named(suffix: str) -> Path:
            return output.with_name(output.name + suffix)

        self.output, self.review = output, review
        self.records = output if output.suffix == ".jsonl" else named(".journal.jsonl")
        self.errors, self.state = named(".errors.jsonl"), named(".run.json")
        self.written = named(".written.jsonl")
        self.beside = (self.errors, self.state, self.written)
        self.all = [output, self.records, *self.beside]
        self.folder = Path(os.path.realpath(output.absolute().parent))
        if review is not None:
            if os.path.realpath(review) in map(os.path.realpath, self.all):
                raise ConfigError(
                    f"review {review} is a file that the run itself writes: name another"
                )
            self.all.append(review)

    @property
    def review_name(self) -> str | None:
        """The review as seen from the output: the same file, whatever the current folder is."""
        if self.review is None:
            return None
        review = os.path.realpath(self.review)
        try:
            return os.path.relpath(review, self.folder)
        except ValueError:  # another drive
            return review

    def part(self, kind: str = "") -> str:
        """Return the name of a file while it is written; no two outputs share it."""
        return f".captioner-{digest(os.path.realpath(self.output)).hex()}{kind}.part"


class RunLock(Closing):
    """Excludes other runs from a file, until this is closed or the process ends.

    The lock is a hidden file beside it: on Windows a locked file cannot be read.

    Raises OutputError: another run holds the lock.
    """

    def __init__(self, path: Path) -> None:
        name = f".captioner-{digest(os.path.realpath(path)).hex()}.lock"
        self._file = path.with_name(name)
        self._lock = FileLock(self._file, blocking=False)
        while True:
            before = _inode(self._file)
            try:
                self._lock.acquire()
            except Timeout:
                raise OutputError(
                    f"another run is writing to {path.name.removesuffix('.journal.jsonl')}: "
                    "wait for it to finish, or choose another output"
                ) from None
            if before is not None and before == _inode(self._file):
                return
            self._lock.release()  # new, or a run that ended has removed it meanwhile

    def close(self) -> None:
        """Remove the lock file, and end the lock."""
        if self._lock.is_locked:
            with suppress(OSError):  # Windows keeps files that are open
                self._file.unlink()
            self._lock.release()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


@contextmanager
def resumable(output: Path) -> Iterator[None]:
    """Raise OutputError for what the operating system refuses; the message ends with the remedy."""
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
    """Add the remedy to an error that the operating system caused, once."""
    if not isinstance(error.__cause__, OSError) or _REMEDY in error.detail:
        return error
    return OutputError(f"{error}. {_REMEDY}")


def check_free(path: Path, *, empty: bool = True) -> None:
    """Refuse a file that exists; an empty one is allowed if `empty` is true."""
    if os.path.lexists(path) and not (empty and path.is_file() and not size_of(path)):
        raise OutputError(
            f"{path} already exists, and no run with this output wrote it: choose another name, or "
            "move the file away"
        )


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write all bytes to an unbuffered file."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def size_of(path: Path) -> int:
    """Return the size of a file, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0
