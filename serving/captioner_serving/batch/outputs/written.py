"""Write sidecars and log them; --restart deletes the logged files."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from captioner.errors import OutputError
from captioner.shared.files import replace_file, sync_folder, writing
from captioner_serving.batch.files import RunFiles, RunLock, write_all
from captioner_serving.batch.inputs.photos import open_quietly

_LARGEST = 1 << 26  # bytes; a sidecar is read into memory
_TAIL = 1 << 16  # bytes of a log that contain its last line


class WrittenFiles:
    """Writes and logs sidecars.

    The log has a line for each file: its path, its digest, and the digest of the file that it
    replaced. The line is written before the file, so the log of a killed run is complete.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._log: BinaryIO | None = None

    def write(self, path: str | os.PathLike[str], new: bytes, *, old: bytes | None) -> None:
        """Write a file; `old` is the present content, or None if the file does not exist."""
        log = self._files.written
        line = {
            "path": os.path.realpath(path),
            "written": _sha256(new),
            "before": None if old is None else _sha256(old),
        }
        with writing(log):
            if self._log is None:
                self._log = log.open("ab", buffering=0)
                sync_folder(log.absolute().parent)
                write_all(self._log, b"\n")  # ends a torn line
            write_all(self._log, json.dumps(line).encode() + b"\n")
        with replace_file(path, part=self._files.part()) as file:
            file.write(new)

    def sync(self) -> None:
        """Write the log to disk."""
        if self._log is not None:
            os.fsync(self._log.fileno())

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def remove_parts(self) -> None:
        """Remove the temporary files of a killed run, beside its output or a photo."""
        paths = [self._files.output]
        with suppress(OSError), self._files.written.open("rb") as log:
            log.seek(-min(_TAIL, log.seek(0, os.SEEK_END)), os.SEEK_END)
            paths += [Path(line["path"]) for line in _parsed(log)][-1:]
        for path in paths:
            for part in (self._files.part(), self._files.part("-state")):
                with suppress(OSError):
                    path.with_name(part).unlink()

    def delete_files(self) -> None:
        """Delete the logged files and the log.

        Files that existed before the run, or that were changed since, are kept.
        """
        self.close()
        before: dict[tuple[str, str], str | None] = {}  # None: the file was new
        with suppress(FileNotFoundError), self._files.written.open("rb") as log:
            for line in _parsed(log):
                key = (line["path"], line["written"])
                if line["before"] is None or key not in before:
                    before[key] = line["before"]
        for path in {path for path, _ in before}:
            with suppress(OutputError):
                data, seen = read_existing(path), set()
                digest = None if data is None else _sha256(data)
                while digest is not None and digest not in seen:
                    seen.add(digest)
                    digest = before.get((path, digest), digest)
                if data is not None and digest is None:
                    Path(path).unlink()
        self._files.written.unlink(missing_ok=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a log. A torn line is of a file that was not written."""
    for text in lines:
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and line.keys() >= {"path", "written", "before"}:
                yield line


def read_existing(path: str | os.PathLike[str]) -> bytes | None:
    """Read a sidecar; return None if it does not exist.

    Raises OutputError: it is not a readable regular file, or too large for a sidecar.
    """
    try:
        with open(path, "rb", opener=open_quietly) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OutputError(f"{path} cannot be read: it is not a regular file")
            if status.st_size > _LARGEST:
                raise OutputError(f"{path} has {status.st_size:,} bytes, too many for a sidecar")
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{path} cannot be read: {error.strerror}") from error


@contextmanager
def lock_and_log(records: Path) -> Iterator[WrittenFiles | None]:
    """Lock the run that wrote these records; yield the log of its files, or None without a run."""
    for output in (records, Path(str(records).removesuffix(".journal.jsonl"))):
        run = RunFiles(output)
        if records in (run.records, output) and run.state.is_file() and run.records.exists():
            break
    else:
        yield None
        return
    with writing(run.records):
        lock = RunLock(run.records)
    with lock, closing(WrittenFiles(run)) as written:
        written.remove_parts()
        yield written
        written.sync()
