"""The journal of a run: the files of its records, and a small file that says how long they are.

A commit brings whole batches of lines to the disk (fsync); then an OUTPUT.run.json with the new
lengths takes the place of the old one. What lies behind these lengths is not done: the next run
cuts it off and does it again. So a photo's lines are there once or not at all, wherever a run was
killed, a run that goes on makes the same batches as one that nobody disturbed, and to go on it
reads the names in the lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from captioner.closing import Closing
from captioner.errors import ConfigError, OutputError
from captioner.familiarity import UNFAMILIAR
from captioner.files import digest, file_digest, replace_file, sync_folder
from captioner.terminal import json_line
from captioner_serving.batch.files import (
    RunFiles,
    check_free,
    lock,
    size_of,
    write_all,
)
from captioner_serving.batch.outputs.records import write_records
from captioner_serving.batch.outputs.written import WrittenFiles

__all__ = ["ERRORS", "RECORDS", "REVIEW", "Journal"]

RECORDS, ERRORS, REVIEW = range(3)
"""The files of records; what a photo came to is where its line lies."""

# Of a million captions in the review it takes 25 MB, and tuples would take ten times as much.
_PLACE = np.dtype([("trusted", bool), ("right", float), ("score", float), ("size", np.int64)])
_BEGINNING = b'{"image": "'  # of every line
_BESIDE = f'"error": {{"type": "{OutputError.type}"'.encode()  # of a photo that has its record too


@dataclass(frozen=True, kw_only=True)
class _State:
    """What OUTPUT.run.json says.

    ends: lengths of RECORDS, ERRORS and REVIEW, in bytes.
    retry: bytes at the beginning of ERRORS whose photos are being tried again.
    in_order: bytes at the beginning of REVIEW that are sorted.
    ended: the run left nothing behind these lengths: what is found there is somebody else's.
    exported: digests of what was made of the records, one of which OUTPUT is.
    """

    settings: dict[str, Any]
    ends: tuple[int, int, int] = (0, 0, 0)
    retry: int = 0
    in_order: int = 0
    ended: bool = False
    exported: tuple[str, ...] = ()
    format: Literal[2] = 2  # 1 was a log of commits


class Journal(Closing):
    """The files of one run, opened for going on; a context manager.

    Attributes:
        done: digests of the names that need not be done, or done again.
        failed: those of them that have failed.
        counts: lines in each of the files of records.
        written: what lies beside the photos.

    Args:
        files: of the run.
        settings: what two runs must share to write one output.
        restart: forget what an earlier run wrote.
        retry_errors: take what failed for not done.

    Raises:
        ConfigError: an earlier run wrote them with other settings.
        OutputError: they cannot be written, another run is at it, or a file is not what an
            earlier run left.
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
        self._paths = (files.records, files.errors, files.review)
        self._files: list[BinaryIO | None] = [None, None, None]
        self._pending: list[tuple[int, bytes]] = []
        self._state = _State(settings=json.loads(json.dumps(settings)))
        self._opened = False
        with self._writing():
            self._is_new = not files.records.exists()
            self._files[RECORDS] = lock(files.records)
        try:
            with self._writing():
                self._open(restart=restart)
                if retry_errors:
                    self._save(retry=self._state.ends[ERRORS])
                self._read()
        except BaseException:
            self.close()
            raise

    def add(
        self, record: Mapping[str, Any], file: int, *, failure: Mapping[str, Any] | None = None
    ) -> None:
        """Take a record into a file; it counts with the next commit.

        failure: the error of what belongs to the photo beside its record. The record stands, the
            photo counts as failed, and a retry adds no other record.
        """
        lines = [] if digest(record["image"]) in self._standing else [(file, record)]
        lines += [] if failure is None else [(ERRORS, failure)]
        for number, _ in lines:
            self.counts[number] += 1
        # In one go: Ctrl-C between a record and its failure would lose the one.
        self._pending += [(number, json_line(line).encode() + b"\n") for number, line in lines]

    def commit(self) -> None:
        """Bring everything that was added to the disk; from here on it is done.

        After an OutputError (the disk is full, say) it may be called again.
        """
        if not self._pending:
            return
        ends = list(self._state.ends)
        with self._writing():
            self.written.sync()
            for number, file in enumerate(self._files):
                lines = b"".join(line for each, line in self._pending if each == number)
                if file is not None and lines:
                    file.truncate(ends[number])  # what a commit that failed has left
                    write_all(file, lines)
                    os.fsync(file.fileno())
                    ends[number] += len(lines)
            self._save(ends=tuple(ends))
        self._pending = []

    def finish(self) -> None:
        """Forget the errors that were tried again: the run has come to its end."""
        if not self._state.retry:
            return
        errors = self.files.errors
        with self._writing():
            with replace_file(errors, part=self.files.part()) as file:
                file.write(errors.read_bytes()[self._state.retry :])
            self._shorten_errors()

    def sort_review(self) -> None:
        """Bring the captions with most to correct to the beginning of the review; see _place.

        The length stays, so that the file is what the run has left, before and after.
        """
        review, end = self.files.review, self._state.ends[REVIEW]
        if review is None or self._state.in_order == end:
            return
        with self._writing():
            places = (_place(line, review) for line in self._lines(REVIEW))
            lines = np.fromiter(places, dtype=_PLACE)
            order = np.lexsort((lines["score"], lines["right"], lines["trusted"]))
            starts = np.cumsum(lines["size"]) - lines["size"]
            if (np.diff(order) < 0).any():
                part = self.files.part()
                with review.open("rb") as old, replace_file(review, part=part) as file:
                    for at in order:
                        file.write(os.pread(old.fileno(), lines["size"][at], starts[at]))
                self._lock_again(REVIEW)
            self._save(in_order=end)

    def export(self) -> None:
        """Write an output that is made of the records; where somebody has changed it, it stays."""
        output, records = self.files.output, self.files.records
        if output == records:
            return
        self._check_exported()
        part = self.files.part()
        try:
            with records.open("rb") as lines, replace_file(output, part=part) as file:
                rows = map(json.loads, lines)
                write_records(file, output.suffix, rows)
                # Noted before it takes its name; until then the old one has it.
                exported = (*self._state.exported[-1:], file_digest(Path(file.name)))
                self._save(exported=exported)
        except OutputError as error:
            raise OutputError(
                f"{error}. Every record is in {records}: fix that, and the same command writes it"
            ) from error

    def close(self) -> None:
        """Close the files; the next run cuts off what was not committed."""
        records, self._files[RECORDS] = self._files[RECORDS], None
        if records is None:
            return
        with suppress(OSError, OutputError):  # on a full disk the next run knows less, and goes on
            if self._opened and not self.files.errors.stat().st_size:
                self.files.errors.unlink()  # no news is good news
            if self._opened and not self._pending:
                self._save(ended=True)
            elif self._is_new and not os.fstat(records.fileno()).st_size:
                # While it is locked, or the file would be another run's by now.
                self.files.records.unlink()
        for file in (records, *self._files):
            if file is not None:
                file.close()
        self.written.close()

    def _open(self, *, restart: bool) -> None:
        """Open the files as an earlier run left them, or anew."""
        files, settings = self.files, self._state.settings
        known = _read_state(files.state)
        self.written.remove_parts(known.settings.get("review") if known else None)
        if files.review is not None and (
            known is None or known.settings.get("review") != settings["review"]
        ):
            check_free(files.review, empty=False)  # an empty one may be another run's by now
        if known is None:
            for path in (files.output, files.records, files.errors, files.written):
                check_free(path)
        elif restart:
            self.written.take_back()
            for path in filter(None, (files.output, files.errors, files.review)):
                if path != files.records:
                    path.unlink(missing_ok=True)
            os.truncate(files.records, 0)
        else:
            _check_settings(files.output, known.settings, settings)
            self._state = known
            self._check_exported()
        if self._state is not known:
            self._save()  # which names the review, before that is there
        self._open_lines()
        self._save(ended=False)
        self._opened = True

    def _open_lines(self) -> None:
        """Open the files of lines, and cut off what a killed run wrote and had not committed."""
        state = self._state
        if state.retry and size_of(self.files.errors) == state.ends[ERRORS] - state.retry:
            self._shorten_errors()  # killed while it finished
        for number, path in enumerate(self._paths):
            if path is None:
                continue
            is_new = self._is_new if number == RECORDS else not path.exists()
            if self._state.ends[number] and is_new:
                raise _refused(path, "is gone")
            file = self._files[number]
            if file is None:
                file = self._files[number] = lock(path)
            _check_end(path, file, self._state.ends[number], ended=state.ended)
        for path, file, end in zip(self._paths, self._files, self._state.ends, strict=True):
            if path is not None and file is not None:
                file.truncate(end)
                sync_folder(path.absolute().parent)  # or a power cut could take a new file

    def _shorten_errors(self) -> None:
        """Take down that the errors that were tried again are gone from their file."""
        records, errors, review = self._state.ends
        self._save(ends=(records, errors - self._state.retry, review), retry=0)
        self._lock_again(ERRORS)

    def _lock_again(self, number: int) -> None:
        """Open a file of lines that another has taken the place of."""
        file, path = self._files[number], self._paths[number]
        if file is not None and path is not None:
            file.close()
            self._files[number] = lock(path)

    def _read(self) -> None:
        """Learn from the lines what is done."""
        self.counts = [0, 0, 0]
        self.done: set[bytes] = set()
        for number in (RECORDS, REVIEW):
            for line in self._lines(number):
                self.done.add(_name_in(line, self._paths[number]))
                self.counts[number] += 1
        self.failed: set[bytes] = set()
        self._standing: set[bytes] = set()  # have a record, and are tried again
        place = 0
        for line in self._lines(ERRORS):
            name = _name_in(line, self.files.errors)
            if place >= self._state.retry:
                self.failed.add(name)
                self.counts[ERRORS] += 1
            elif _BESIDE in line and name in self.done:
                self._standing.add(name)
            place += len(line)
        self._standing -= self.failed
        self.done = (self.done - self._standing) | self.failed

    def _lines(self, number: int) -> Iterator[bytes]:
        if (path := self._paths[number]) is not None:
            with path.open("rb", buffering=1 << 20) as file:
                yield from file

    def _check_exported(self) -> None:
        """Refuse to write over an output that somebody has edited since a run made it."""
        path = self.files.output
        if path == self.files.records or not size_of(path):
            return
        if file_digest(path) not in self._state.exported:
            raise OutputError(
                f"{path} was changed after the run that wrote it: move it away, and the same "
                "command writes it again, or start over with --restart, which deletes it"
            )

    def _save(self, **changes: Any) -> None:
        """Bring what the run must know of itself to the disk."""
        state = replace(self._state, **changes)
        if changes and state == self._state:
            return
        with replace_file(self.files.state, part=self.files.part("-state")) as file:
            file.write(json.dumps(asdict(state)).encode() + b"\n")
        self._state = state

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn what the operating system says into an OutputError that names the remedy."""
        try:
            yield
        except OSError as error:
            what = f" ({error.filename})" if error.filename else ""
            raise OutputError(
                f"{self.files.output} cannot be written{what}: {error.strerror}. What was done "
                "stays: fix that, and the same command goes on from there"
            ) from error


def _check_end(path: Path, file: BinaryIO, end: int, *, ended: bool) -> None:
    """Refuse a file that somebody has changed: no more is cut off than a killed run has left."""
    size = os.fstat(file.fileno()).st_size
    if size < end:
        raise _refused(path, f"has {size:,} bytes, and a run left {end:,}")
    if (
        (end and os.pread(file.fileno(), 1, end - 1) != b"\n")
        or (ended and size > end)
        or not _is_of_a_run(os.pread(file.fileno(), size - end, end))
    ):
        raise _changed(path)


def _is_of_a_run(tail: bytes) -> bool:
    """Whether a run that was killed may have written this after its last commit."""
    *lines, torn = tail.partition(b"\0")[0].split(b"\n")  # a power cut may leave zeros
    try:
        records = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        return False
    return torn[: len(_BEGINNING)] == _BEGINNING[: len(torn)] and all(
        isinstance(record, dict) and "image" in record and not {"model", "error"}.isdisjoint(record)
        for record in records
    )


def _name_in(line: bytes, path: Path | None) -> bytes:
    """Digest the name in a line, of which nothing else is read: there may be millions."""
    end = line.find(b'", "')  # a quote in a name has a backslash before it
    if not line.startswith(_BEGINNING) or end < 0 or not line.endswith(b"\n"):
        raise _changed(path)
    name = line[len(_BEGINNING) : end]
    return digest(json.loads(b'"%b"' % name) if b"\\" in name else name)


def _place(line: bytes, review: Path) -> tuple[bool, float, float, int]:
    """Tell where in the review a caption stands, and last how long its line is.

    First come captions without trust, which name nothing, and those of photos unlike the training
    photos; then, in both parts, those in which trust expects most wrong words; then the lowest
    scores. Where the checkpoint knows no trust these decide alone.
    """
    try:
        record = json.loads(line)
        right = sum(word["trust"] - 1.0 for word in record["words"] if "trust" in word)
        trusted = "trust" in record and record.get("familiarity", 1.0) >= UNFAMILIAR
        return trusted, right, record["score"], len(line)
    except (ValueError, KeyError, TypeError) as error:
        raise _changed(review) from error


def _read_state(path: Path) -> _State | None:
    try:
        return TypeAdapter(_State).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise OutputError(
            f"{path} was not written by this version of Captioner, or is damaged: go on with the "
            "version that wrote it, put it back, or choose another output"
        ) from error


def _check_settings(output: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to mix records of two kinds in one output."""
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
    if value is None or value == "" or value is False:
        return "not given"
    return "given" if value is True else value if isinstance(value, str) else json.dumps(value)


def _refused(path: Path | None, problem: str) -> OutputError:
    return OutputError(
        f"{path} {problem}: put the file back as it was, or start over with --restart, which "
        "deletes it"
    )


def _changed(path: Path | None) -> OutputError:
    return _refused(path, "was changed after the run that wrote it")
