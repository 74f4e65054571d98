"""What a run has written beside the photos, and what was there before: --restart takes it back."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

from captioner.errors import OutputError
from captioner.files import replace_file, sync_folder
from captioner_serving.batch.journal.commits import CommitLog, write_all
from captioner_serving.batch.journal.files import RunFiles

__all__ = ["WrittenFiles", "written_beside"]


class WrittenFiles:
    """A log with a line for each sidecar and map: its path, its digest, and the bytes before it.

    A line reaches the file before the sidecar does: a run that is killed knows all that it wrote.
    `part` is what each is called while it is written, see `replace_file`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self.part: str | None = None

    def remove_part(self, output: Path) -> None:
        """Remove what the run was writing when it was killed: the last file noted, or `output`."""
        if self.part is None:
            return
        with suppress(OSError):
            output.with_name(self.part).unlink()
        with (
            # Nothing noted, or half a line: then nothing was begun.
            suppress(OSError, ValueError, KeyError, TypeError),
            self._path.open("rb") as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as lines,
        ):
            last = json.loads(lines[lines.rfind(b"\n", 0, len(lines) - 1) + 1 :])
            Path(last["path"]).with_name(self.part).unlink()

    def note(
        self, path: str | os.PathLike[str], new: bytes, *, old: bytes | None = None
    ) -> str | None:
        """Remember that a file is about to hold `new`; `old` is None where there is none yet.

        Returns:
            What it is called while it is written.

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
                sync_folder(self._path.absolute().parent)
                write_all(self._file, b"\n")  # or a line that was torn would spoil the next
            write_all(self._file, json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise OutputError(f"{self._path} cannot be written: {error.strerror}") from error
        return self.part

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

        A file that has changed since it was written is somebody else's by now, and stays.

        Raises:
            OutputError: an old file cannot be written back.
            OSError: a file cannot be removed.

        """
        self.close()
        for line in self._last_first():
            path, before = Path(line["path"]), line["before"]
            if not path.is_file():
                continue
            if hashlib.sha256(path.read_bytes()).hexdigest() != line["written"]:
                continue
            if before is None:
                path.unlink()
            else:
                with replace_file(path, part=self.part) as file:
                    file.write(zlib.decompress(base64.b64decode(before)))
        self._path.unlink(missing_ok=True)

    def _last_first(self) -> Iterator[dict[str, Any]]:
        """Read the lines backwards, one at a time: together they may be larger than memory."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            starts = [0]
            starts += (file.tell() for _ in iter(file.readline, b""))
            for start in reversed(starts):
                file.seek(start)
                try:
                    line = json.loads(file.readline())
                except ValueError:
                    continue  # torn: the file that it speaks of was not written
                yield line


@contextmanager
def written_beside(records: Path) -> Iterator[WrittenFiles | None]:
    """Open the log of the run that made these records, for a command that writes sidecars too.

    None stands for records that no run goes on from: its progress is not beside them.

    Raises:
        OutputError: the run is at it, or its files cannot be opened.

    """
    names = (str(records), str(records).removesuffix(".journal.jsonl"))
    runs = (RunFiles.beside(name, None) for name in names)
    made = (run for run in runs if records in (run.records, run.output))
    run = next((run for run in made if run.progress.is_file()), None)
    if run is None:
        yield None
        return
    try:
        log = CommitLog(run.progress)  # no run may begin meanwhile
    except OSError as error:
        raise OutputError(
            f"{run.progress} cannot be opened ({error.strerror}), beside which sidecars are noted: "
            "copy the records to a folder of yours"
        ) from error
    with closing(log), closing(WrittenFiles(run.written)) as written:
        next(log.read(), None)
        written.part = log.part
        written.remove_part(run.output)
        yield written
        written.sync()
