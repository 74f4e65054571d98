"""The files that a journal's records lie in, a line each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from captioner.errors import OutputError
from captioner_serving.batch.journal.commits import write_all

__all__ = ["LineFiles", "changed", "parsed"]

_PART = 1 << 14  # bytes; most records are shorter
_BEGINNING = b'{"image": "'  # of every record


class LineFiles:
    """Files that only grow, by whole lines; a path that is None stands for a file not in use."""

    def __init__(self, paths: Sequence[Path | None]) -> None:
        self._paths = paths
        self._files: list[BinaryIO | None] = [None for _ in paths]

    def open(self, ends: Sequence[int], *, whole: bool) -> None:
        """Open the files, and cut off what lies beyond their ends.

        Args:
            ends: of the files, in bytes.
            whole: the run before left nothing beyond them.

        Raises:
            OutputError: one is shorter, has no line that ends there, or has more in it than runs
                write.
            OSError: one cannot be opened.

        """
        for number, path in enumerate(self._paths):
            if path is not None:
                self._files[number] = _open_at(path, ends[number], whole=whole)

    def close(self) -> None:
        """Close them."""
        for file in filter(None, self._files):
            file.close()

    def end_at(self, ends: Sequence[int]) -> bool:
        """Whether the open files have just these lengths."""
        files = zip(self._files, ends, strict=True)
        return all(file is None or os.fstat(file.fileno()).st_size == end for file, end in files)

    def sync(self) -> None:
        """Bring them to the disk."""
        for file in filter(None, self._files):
            os.fsync(file.fileno())

    def append(self, number: int, line: bytes) -> None:
        """Write a line at the end of a file."""
        write_all(self._file(number), line)

    def empty(self, number: int) -> None:
        """Cut a file off at its beginning."""
        self._file(number).truncate(0)

    def line(self, number: int, offset: int) -> bytes:
        """Read the line that begins at an offset.

        Raises:
            OutputError: there is none.

        """
        descriptor, data = self._file(number).fileno(), b""
        while b"\n" not in data:
            part = os.pread(descriptor, _PART, offset + len(data))
            if not part:
                raise OutputError(f"{self._paths[number]} was changed during the run")
            data += part
        return data[: data.index(b"\n")]

    def _file(self, number: int) -> BinaryIO:
        file = self._files[number]
        if file is None:
            raise OutputError("there is no review file in this run")
        return file


def parsed(line: bytes) -> dict[str, Any] | None:
    """Read a record; None where the line is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def changed(path: Path | None) -> OutputError:
    """Make the error for a file in which somebody else has written."""
    return _refused(path, "was changed after the run that wrote it")


def _refused(path: Path | None, problem: str) -> OutputError:
    return OutputError(
        f"{path} {problem}: put the file back as it was, or start over with --restart, which "
        "deletes it"
    )


def _of_a_run(tail: bytes) -> bool:
    """Whether a run that was killed may have written this after its last commit."""
    *lines, torn = tail.partition(b"\0")[0].split(b"\n")  # a power cut may leave zeros
    records = map(parsed, lines)
    return torn[: len(_BEGINNING)] == _BEGINNING[: len(torn)] and all(
        record is not None and "image" in record and ("model" in record or "error" in record)
        for record in records
    )


def _open_at(path: Path, end: int, *, whole: bool) -> BinaryIO:
    """Open a file that ends where the last commit says; what a killed run wrote after is cut."""
    if end and not path.exists():
        raise _refused(path, "is gone")
    file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by LineFiles
    try:
        size = os.fstat(file.fileno()).st_size
        if size < end:
            raise _refused(path, f"has {size:,} bytes, and a run left {end:,}")
        if (
            (end and os.pread(file.fileno(), 1, end - 1) != b"\n")
            or (whole and size > end)
            or not _of_a_run(os.pread(file.fileno(), size - end, end))
        ):
            raise changed(path)
        file.truncate(end)
    except BaseException:
        file.close()
        raise
    return file
