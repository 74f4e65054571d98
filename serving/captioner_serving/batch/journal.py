"""The journal of a run: JSON Lines files and the settings, from which a run resumes.

A photo is done when its line is on disk. Its sidecar comes first, then the line, then fsync.
A resume reads the names in the lines and truncates a torn line, so a killed run loses at most the
photos of its last second and writes no line twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from captioner.closing import Closing
from captioner.errors import OutputError
from captioner.shared.files import digest, file_digest, replace_file, sync_folder
from captioner.shared.text import json_line
from captioner_serving.batch.files import (
    FORMAT,
    RunFiles,
    RunLock,
    check_settings,
    read_state,
    resumable,
    size_of,
    write_all,
)
from captioner_serving.batch.outputs.formats import read_records, write_records
from captioner_serving.batch.outputs.written import WrittenFiles

RECORDS, ERRORS = range(2)
"""Indexes of the JSON Lines files."""

_COMMITTED = (ERRORS, RECORDS)
"""The order of writing in a commit: the error of a sidecar is on disk before its record."""
_PREFIX = b'{"image": "'  # every line begins with it
# A part of the lines for failed sidecars. Their photos have a record too.
_OUTPUT_ERROR = f'"error": {{"type": "{OutputError.type}"'.encode()


class Journal(Closing):
    """The open files of one run; a context manager.

    Attributes:
        done: digests of the names of photos to skip.
        failed: the digests in `done` whose photos failed.
        modified: when an earlier run last wrote a record, in seconds; infinity without one.
        note: a line about the ids in COCO results, after `finish`.

    Raises:
        ConfigError: an earlier run had other settings.
        OutputError: the files cannot be written, are in use, or are not from an earlier run.
    """

    def __init__(
        self,
        files: RunFiles,
        settings: Mapping[str, Any],
        *,
        restart: bool = False,
        retry_errors: bool = False,
    ) -> None:
        self.files = files
        self.written = WrittenFiles(files)
        self.done: set[bytes] = set()
        self.failed: set[bytes] = set()
        self.counts = [0, 0]
        self.note = ""
        self.modified = math.inf
        self._paths = (files.records, files.errors)
        self._sizes = [0, 0]
        self._pending: list[tuple[int, bytes]] = []
        self._retried: dict[bytes, bytes] = {}  # lines of failed sidecars, by name
        self._state: dict[str, Any] = {
            "settings": json.loads(json.dumps(settings)),
            "exported": [],  # digests of the last two exports; others were edited
        }
        with resumable(files.output):
            self._lock = RunLock(files.records)
            try:
                with suppress(FileNotFoundError):
                    self.modified = files.records.stat().st_mtime
                earlier = read_state(files.state)
                self.written.remove_parts()
                if earlier is None or restart:
                    self._begin(is_first=earlier is None)
                else:
                    self._resume(earlier)
                self._read(retry_errors=retry_errors)
            except BaseException:
                self.close()
                raise

    def add(self, record: Mapping[str, Any], *, failure: Mapping[str, Any] | None = None) -> None:
        """Add a record or error; it is on disk after the next commit.

        failure: the error of the photo's sidecar. The record is kept, the photo counts as failed,
            and a retry adds no second record.
        """
        file = ERRORS if "error" in record else RECORDS
        is_retried = bool(self._retried) and digest(record["image"]) in self._retried
        lines = [] if is_retried and file == RECORDS else [(file, record)]
        lines += [] if failure is None else [(ERRORS, failure)]
        for number, _ in lines:
            self.counts[number] += 1
        # One statement, so that Ctrl-C cannot separate a record from its failure.
        self._pending += [(number, json_line(line).encode() + b"\n") for number, line in lines]

    def commit(self) -> None:
        """Write all added lines to disk. After an OutputError it may be called again."""
        if not self._pending:
            return
        sizes = list(self._sizes)
        with resumable(self.files.output):
            self.written.sync()
            try:
                for number in _COMMITTED:
                    lines = b"".join(line for target, line in self._pending if target == number)
                    if lines:
                        _append(self._paths[number], lines)
                        sizes[number] += len(lines)
            except BaseException:
                for path, size in zip(self._paths, self._sizes, strict=True):
                    with suppress(OSError):
                        os.truncate(path, size)
                raise
        self._sizes, self._pending = sizes, []

    def finish(self) -> None:
        """Write the output, after all photos are captioned."""
        errors = self.files.errors
        with resumable(self.files.output):
            if head := sum(map(len, self._retried.values())):
                with replace_file(errors, part=self.files.part()) as file:
                    file.write(errors.read_bytes()[head:])
        self._export()

    def close(self) -> None:
        """Close the files, and remove an empty file of errors."""
        self.written.close()
        if self._lock.is_held:  # otherwise the files may belong to another run
            with suppress(OSError):
                if not size_of(self.files.errors):
                    self.files.errors.unlink(missing_ok=True)
        self._lock.close()

    def _begin(self, *, is_first: bool) -> None:
        """Start a new run; delete the files of an earlier one."""
        files = self.files
        if is_first:
            for path in (files.output, files.records, files.errors, files.written):
                if os.path.lexists(path) and not (path.is_file() and not size_of(path)):
                    raise OutputError(
                        f"{path} exists and is not from an earlier run with this output: choose "
                        "another name, or move the file"
                    )
        else:
            self.written.delete_files()
            for path in {files.output, files.errors} - {files.records}:
                path.unlink(missing_ok=True)
        files.records.write_bytes(b"")
        sync_folder(files.folder)
        self._save()

    def _resume(self, earlier: dict[str, Any]) -> None:
        """Check that the files and settings are those of an earlier run."""
        if not self.files.records.exists():
            raise _damaged(self.files.records, "is missing")
        check_settings(self.files.output, earlier["settings"], self._state["settings"])
        self._state = earlier
        self._check_exported()

    def _read(self, *, retry_errors: bool) -> None:
        """Read the names of finished photos."""
        for name, _ in _read_lines(self.files.records):
            self.done.add(name)
            self.counts[RECORDS] += 1
        with_record, errors, end = {}, self.files.errors, 0
        for name, line in _read_lines(errors) if errors.exists() else ():
            if name in self.done:  # its sidecar failed; in a retry, perhaps the photo too
                with_record[name] = line
            elif _OUTPUT_ERROR in line:  # killed during a commit
                os.truncate(errors, end)
                break
            self.failed.add(name)
            end += len(line)
        if retry_errors:
            with replace_file(errors, part=self.files.part()) as file:
                file.writelines(with_record.values())
            self._retried, self.failed = with_record, set()
            self.done -= with_record.keys()
        self.done |= self.failed
        self.counts[ERRORS] = len(self.failed)
        self._sizes = list(map(size_of, self._paths))

    def _export(self) -> None:
        """Convert the records to the output's format, unless the output was edited."""
        output, records = self.files.output, self.files.records
        if output == records:
            return
        self._check_exported()
        try:
            with replace_file(output, part=self.files.part()) as file:
                rows, settings = filter(None, read_records(records)), self._state["settings"]
                plain = settings.get("wording", {}).get("template") is not None
                self.note = write_records(file, output.suffix, rows, plain=plain)
                # Save the digest before the new file replaces the old one.
                exported = [*self._state["exported"][-1:], file_digest(Path(file.name))]
                self._state["exported"] = exported
                self._save()
        except OutputError as error:
            raise OutputError(
                f"{error}. All records are in {records}: fix the cause, then run the same command "
                f"to write {output}"
            ) from error

    def _check_exported(self) -> None:
        """Raise OutputError if the output was edited."""
        path = self.files.output
        if path == self.files.records or not size_of(path):
            return
        if file_digest(path) not in self._state["exported"]:
            raise OutputError(
                f"{path} was changed since the run wrote it: move it and run the same command "
                "again, or start over with --restart, which deletes it"
            )

    def _save(self) -> None:
        with replace_file(self.files.state, part=self.files.part("-state")) as file:
            file.write(json.dumps({**self._state, "format": FORMAT}).encode() + b"\n")


def _append(path: Path, data: bytes) -> None:
    """Append to a file, and flush it to the disk."""
    is_new = not path.exists()
    # Unbuffered: closing must not write, or it could fail on a full disk.
    with path.open("ab", buffering=0) as file:
        write_all(file, data)
        os.fsync(file.fileno())
    if is_new:
        sync_folder(path.absolute().parent)


def _read_lines(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield each line with the digest of its name; truncate a torn line at the end of the file."""
    end = 0
    with path.open("r+b", buffering=1 << 20) as file:  # a read-only file fails at once
        for number, line in enumerate(file, 1):
            # A power cut may leave zeros in a file.
            text, zero, _ = line.partition(b"\0")
            if zero or not line.endswith(b"\n"):
                if text[: len(_PREFIX)] != _PREFIX[: len(text)]:
                    raise _damaged(path, f"has text that is not a record (line {number})")
                os.truncate(path, end)
                return
            if (name := _name_in(line)) is None:
                raise _damaged(path, f"has a line that is not a record (line {number})")
            yield digest(name), line
            end += len(line)


def _name_in(line: bytes) -> str | bytes | None:
    """Return the name in a line, if possible without parsing it: there may be millions."""
    end = line.find(b'", "')  # a quote in a name is escaped
    if line.startswith(_PREFIX) and end > 0:
        name = line[len(_PREFIX) : end]
        if b"\\" not in name:
            return name
    try:
        name = json.loads(line)["image"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return name if isinstance(name, str) else None


def _damaged(path: Path, problem: str) -> OutputError:
    return OutputError(
        f"{path} {problem}: restore the file, or start over with --restart, which deletes it"
    )
