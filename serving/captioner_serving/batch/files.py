"""The files of a run: where they lie, that they are nobody else's, and how they are held."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from captioner.errors import ConfigError, OutputError
from captioner.files import digest

__all__ = ["RunFiles", "check_free", "digest_of", "lock", "size_of", "write_all"]


@dataclass(frozen=True)
class RunFiles:
    """What a run writes, but for sidecars and maps.

    Raises:
        ConfigError: the review is one of the others.

    """

    output: Path
    review: Path | None = None  # the unsure records

    def __post_init__(self) -> None:
        own = {os.path.realpath(path) for path in (self.output, self.records, *self.beside)}
        if self.review is not None and os.path.realpath(self.review) in own:
            raise ConfigError(
                f"review {self.review} is a file that the run itself writes: name another"
            )

    @property
    def records(self) -> Path:
        """The records: the output itself where that has a record a line."""
        return self.output if self.output.suffix == ".jsonl" else self._with(".journal.jsonl")

    @property
    def errors(self) -> Path:
        """The photos that failed."""
        return self._with(".errors.jsonl")

    @property
    def state(self) -> Path:
        """What the run must know of itself."""
        return self._with(".run.json")

    @property
    def written(self) -> Path:
        """What was written beside the photos."""
        return self._with(".written.jsonl")

    @property
    def beside(self) -> tuple[Path, ...]:
        """What a pattern may match beside the records, and has no captions."""
        return self.errors, self.state, self.written

    @property
    def all(self) -> tuple[Path, ...]:
        """Every file."""
        return (self.output, self.records, *self.beside, *([self.review] if self.review else []))

    @property
    def review_name(self) -> str | None:
        """The review as seen from the output: the same file, whatever the current folder is."""
        if self.review is None:
            return None
        folder = os.path.realpath(self.output.absolute().parent)
        return os.path.relpath(os.path.realpath(self.review), folder)

    def part(self, kind: str = "") -> str:
        """Name the hidden file that a file is while it is written; no two outputs share it."""
        return f".captioner-{digest(os.path.realpath(self.output)).hex()}{kind}.part"

    def _with(self, suffix: str) -> Path:
        return self.output.with_name(self.output.name + suffix)


def lock(path: Path) -> BinaryIO:
    """Open a file to add to it, and hold it against other runs.

    Raises:
        OutputError: another run holds it.
        OSError: it cannot be opened.

    """
    while True:
        # Unbuffered: closing must not write, or it could fail on a full disk.
        file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BlockingIOError as error:
            file.close()
            raise OutputError(
                f"another run is writing to {path.name.removesuffix('.journal.jsonl')}: "
                "wait for it to finish, or choose another output"
            ) from error
        file.close()  # a run that was refused has removed it meanwhile


def check_free(path: Path, *, empty: bool = True) -> None:
    """See that there is no file; where it may be `empty`, that nothing is in it.

    Raises:
        OutputError: there is.

    """
    if os.path.lexists(path) and not (empty and path.is_file() and not size_of(path)):
        raise OutputError(
            f"{path} already exists, and no run of this output has left it: choose another name, "
            "or move the file away"
        )


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write to an unbuffered file, which may take a part at a time."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def size_of(path: Path) -> int:
    """Give the size of a file, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def digest_of(path: Path) -> str:
    """Digest what is in a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
