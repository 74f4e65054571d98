"""Write sidecars and log them; --restart deletes the logged files."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property
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

    The log has a line for each file: its path, its digest, the digest of the file that it replaced,
    and the size and CRC-32 of the photo if the record has them (`content`). The line is written
    before the file, so the log of a killed run is complete.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._log: BinaryIO | None = None

    def write(
        self,
        path: str | os.PathLike[str],
        new: bytes,
        *,
        old: bytes | None,
        content: str | None = None,
    ) -> None:
        """Write a file; `old` is the present content, or None if the file does not exist."""
        self._append(path, new, old, {} if content is None else {"content": content})
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
        log = self._files.written
        earlier = EarlierFiles([log.parent], glob.escape(log.name))
        for path in earlier.paths:
            with suppress(OutputError):
                if (data := read_existing(path)) is not None and earlier.is_ours(path, data):
                    Path(path).unlink()
        log.unlink(missing_ok=True)

    def _append(
        self, path: str | os.PathLike[str], new: bytes, old: bytes | None, more: dict[str, str]
    ) -> None:
        log = self._files.written
        line = {
            "path": os.path.realpath(path),
            "written": hashlib.sha256(new).hexdigest(),
            "before": None if old is None else hashlib.sha256(old).hexdigest(),
            **more,
        }
        with writing(log):
            if self._log is None:
                self._log = log.open("ab", buffering=0)
                sync_folder(log.absolute().parent)
                write_all(self._log, b"\n")  # ends a torn line
            write_all(self._log, json.dumps(line).encode() + b"\n")


class EarlierFiles:
    """What the logs in some folders say about sidecars. They are read when first needed."""

    def __init__(self, folders: Iterable[Path], pattern: str = "*.written.jsonl") -> None:
        self._folders, self._pattern = folders, pattern

    @property
    def paths(self) -> set[str]:
        """The logged files."""
        return {line["path"] for line in self._lines}

    def is_ours(self, path: str, data: bytes) -> bool:
        """Return whether a sidecar was new when it was written, and only runs have changed it."""
        digest: str | None = hashlib.sha256(data).hexdigest()
        seen = set()
        while digest is not None and digest not in seen:
            seen.add(digest)
            digest = self._before.get((path, digest), digest)
        return digest is None

    def has_content(self, path: str, content: str) -> bool:
        """Return whether a run wrote this sidecar for a photo of this size and CRC-32."""
        return (path, content) in self._contents

    @cached_property
    def _lines(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for log in {log for folder in self._folders for log in folder.glob(self._pattern)}:
            with suppress(OSError), log.open("rb") as file:
                lines += _parsed(file)
        return lines

    @cached_property
    def _before(self) -> dict[tuple[str, str], str | None]:
        """By path and digest: the digest before, or None if the file was new."""
        found: dict[tuple[str, str], str | None] = {}
        for line in self._lines:
            key = (line["path"], line["written"])
            if line["before"] is None or key not in found:
                found[key] = line["before"]
        return found

    @cached_property
    def _contents(self) -> set[tuple[str, str]]:
        return {(line["path"], line["content"]) for line in self._lines if "content" in line}


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
def lock_and_log(records: Path, *, is_page: bool = False) -> Iterator[WrittenFiles | None]:
    """Lock the run that wrote these records; yield the log of its files, if there is such a run.

    is_page: the records are a download of the page, which gets a log of its own.
    """
    runs = (RunFiles(Path(str(records).removesuffix(end))) for end in ("", ".journal.jsonl"))
    with_state = (
        run for run in runs if records in (run.records, run.output) and run.state.is_file()
    )
    run = next(with_state, None)
    if run is None or not run.records.exists():  # these records have no run
        page = page_files(records)
        if not is_page or not os.access(page.folder, os.W_OK):
            yield None
            return
        with closing(WrittenFiles(page)) as written:
            yield written
            written.sync()
        return
    try:
        lock = RunLock(run.records)
    except OSError as error:
        raise OutputError(
            f"{run.records} cannot be locked ({error.strerror}): copy the records to a folder "
            "that you can write to"
        ) from error
    written = WrittenFiles(run)
    with lock, closing(written):
        written.remove_parts()
        yield written
        written.sync()


def page_files(records: Path) -> RunFiles:
    """Return the files of a download of the page. `batch --restart` knows no such name."""
    return RunFiles(records.with_name(f"{records.name}.page"))
