"""The files of a run: where they lie, that they are nobody else's, and how they are held."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from captioner.errors import ConfigError, OutputError
from captioner.files import digest

__all__ = ["RunFiles", "check_free", "lock", "size_of", "write_all"]


class RunFiles:
    """What a run writes, but for sidecars and maps.

    Attributes:
        output: OUTPUT itself.
        review: the unsure records, where there is a place for them.
        records: OUTPUT where that has a record a line, else OUTPUT.journal.jsonl.
        errors: OUTPUT.errors.jsonl, the photos that failed; only if there are any.
        state: OUTPUT.run.json, the settings, and how long each file of records is.
        written: OUTPUT.written.jsonl, the sidecars and maps, and what was there before them.
        beside: what a pattern may match beside the records, and has no captions.
        all: all of them.
        folder: of the output, whatever the current folder is.

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
        return os.path.relpath(os.path.realpath(self.review), self.folder)

    def part(self, kind: str = "") -> str:
        """Name the hidden file that a file is while it is written; no two outputs share it."""
        return f".captioner-{digest(os.path.realpath(self.output)).hex()}{kind}.part"


def lock(path: Path) -> BinaryIO:
    """Open a file to add to it, and hold it against other runs.

    Raises OutputError: another run holds it.
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
    """Refuse a file that is there; where it may be `empty`, only if something is in it."""
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
