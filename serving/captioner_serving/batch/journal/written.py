"""What a run has written beside the photos, and what was there before: --restart takes it back."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from captioner.errors import OutputError
from captioner.files import replace_file
from captioner_serving.batch.journal.commits import write_all

__all__ = ["WrittenFiles"]


class WrittenFiles:
    """A log with a line for each sidecar and map: its path, its digest, and the bytes before it.

    A line reaches the file before the sidecar does: a run that is killed knows all that it wrote.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def note(self, path: str | os.PathLike[str], new: bytes, *, old: bytes | None = None) -> None:
        """Remember that a file is about to hold `new`; `old` is None where there is none yet.

        Raises:
            OutputError: the log cannot be written.

        """
        line = {
            "path": os.path.realpath(path),
            "written": hashlib.sha256(new).hexdigest(),
            "before": None if old is None else base64.b64encode(zlib.compress(old)).decode(),
        }
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - close() closes it
                write_all(self._file, b"\n")  # or a line that was torn would spoil the next
            write_all(self._file, json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise OutputError(f"{self._path} cannot be written: {error.strerror}") from error

    def sync(self) -> None:
        """Bring the log to the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the log."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def take_back(self) -> None:
        """Undo what was written, last things first, and forget it.

        A file that is not as it was written any more is somebody else's by now, and stays.

        Raises:
            OutputError: an old file cannot be written back.
            OSError: a file cannot be removed.

        """
        self.close()
        for line in reversed(list(self._lines())):
            path, before = Path(line["path"]), line["before"]
            if not path.is_file():
                continue
            if hashlib.sha256(path.read_bytes()).hexdigest() != line["written"]:
                continue
            if before is None:
                path.unlink()
            else:
                with replace_file(path) as file:
                    file.write(zlib.decompress(base64.b64decode(before)))
        self._path.unlink(missing_ok=True)

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for raw in file:
                try:
                    line = json.loads(raw)
                except ValueError:
                    continue  # torn: the file that it speaks of was not written
                yield line
