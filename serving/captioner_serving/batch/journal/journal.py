"""The journal of a run: every finished record on disk, whatever happens to the process.

Beside OUTPUT lie
    OUTPUT.errors.jsonl    a record for each photo that failed
    OUTPUT.progress.jsonl  the settings, then a line for each commit
    OUTPUT.written.jsonl   the sidecars and maps, for --restart
    REVIEW.progress.jsonl  whose REVIEW is: runs that shared it would cut each other's lines off
and, where OUTPUT is not .jsonl itself, OUTPUT.journal.jsonl with the records.

A commit brings the records to the disk (fsync), then adds a line to the progress: how long each
file now is, and a digest of each photo's name. What lies beyond the last whole line of the progress
is not done; the next run cuts it off and does it again. So a record is there once or not at all,
wherever a run was killed, and going on reads no record and no photo.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from captioner.closing import Closing
from captioner.digest import digest
from captioner.errors import OutputError
from captioner.files import sync_folder
from captioner.json_line import json_line
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.journal.commits import Commit, CommitLog, Entry, check_settings
from captioner_serving.batch.journal.files import RunFiles, check_free, file_digest
from captioner_serving.batch.journal.lines import LineFiles, changed, parsed
from captioner_serving.batch.journal.written import WrittenFiles

__all__ = ["ERRORS", "RECORDS", "REVIEW", "Journal"]

RECORDS, ERRORS, REVIEW = range(3)
"""The files of a journal; what a photo came to is where its record lies."""

_NOTHING = bytes(16)


class Journal(Closing):
    """The files of one run, opened for going on; a context manager.

    Attributes:
        files: what the run writes.
        paths: of RECORDS, ERRORS and REVIEW; the last may be None.
        done: digests of the names that are done.
        counts: records in each file.
        batch_size: what the run settled on; None while it has not.
        written: what lies beside the photos.

    Raises:
        ConfigError: an earlier run wrote them with other settings, or two of them are one.
        OutputError: they cannot be written, another run is at it, or a file is not what an
            earlier run left.

    """

    def __init__(self, output: str, config: BatchConfig, settings: Mapping[str, Any]) -> None:
        self.files = RunFiles.beside(output, config.review)
        self.output = output
        self.paths = (self.files.records, self.files.errors, self.files.review)
        self.done: set[bytes] = set()
        self._contents: dict[bytes, Entry | None] = {}  # None: a photo that is being captioned
        self.counts = [0, 0, 0]
        self.batch_size: int | None = None
        self._exported: set[str] = set()  # digests of what was made of the records
        self._failed: set[bytes] = set()
        self._standing: set[bytes] = set()  # have a record, and failed at what belongs to it
        self._ends = [0, 0, 0]
        self._pending: list[tuple[Entry, int]] = []  # with the end of its file
        self.written = WrittenFiles(self.files.written)
        self._lines = LineFiles(self.paths)
        with self._writing():
            self._log = CommitLog(self.files.progress)
        self._owner: CommitLog | None = None  # of the review
        try:
            with self._writing():
                self._open(settings, restart=config.restart)
                if config.retry_errors and self._failed:
                    self._void_errors()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files; what was not committed will be cut off by the next run."""
        whole = self._log.whole and not self._pending and self._lines.end_at(self._ends)
        self._log.whole = False  # once: closed files have no length
        self._lines.close()
        self.written.close()
        errors = self.paths[ERRORS]
        with suppress(OSError):
            if errors is not None and not errors.stat().st_size:
                errors.unlink()  # no news is good news
        if self._owner is not None:
            self._owner.close()
        self._log.close(whole=whole)

    def add(
        self,
        name: bytes,
        content: bytes,
        file: int,
        record: Mapping[str, Any],
        *,
        failure: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a record; it counts with the next commit.

        Args:
            name: digest of the photo's name.
            content: digest of its bytes; b"" where they are not known.
            file: RECORDS, ERRORS or REVIEW.
            record: what to write.
            failure: the error of what belongs to the photo beside its record. The record stands,
                the photo counts as failed, and a retry adds no other record.

        Raises:
            OutputError: the disk is full, or the like.

        """
        added = [self._append(Entry(name, content or _NOTHING, file, self._ends[file]), record)]
        if failure is not None:
            added.append(self._append(Entry(name, _NOTHING, ERRORS, self._ends[ERRORS]), failure))
        # In one go: Ctrl-C between an entry and the new end, or between a record and its failure,
        # would lose the one, or double it.
        self._pending.extend(added)
        for place, (entry, end) in enumerate(added):
            self._ends[entry.file] = end
            self._remember(entry, standing=place > 0)

    def _append(self, entry: Entry, record: Mapping[str, Any]) -> tuple[Entry, int]:
        """Write a record to its file; where it ends there."""
        if entry.file != ERRORS and entry.name in self._standing:
            return entry, entry.offset  # tried again: the record is there
        line = json_line(record).encode() + b"\n"
        with self._writing():
            self._lines.append(entry.file, line)
        return entry, entry.offset + len(line)

    def commit(self) -> None:
        """Bring everything that was added to the disk; from here on it is done.

        Raises:
            OutputError: the disk is full, or the like.

        """
        if not self._pending:
            return
        entries = [entry for entry, _ in self._pending]
        for entry, end in self._pending:
            self._ends[entry.file] = end
        with self._writing():
            self.written.sync()
            self._lines.sync()
            self._log.append(Commit(ends=self._ends, batch_size=self.batch_size, entries=entries))
        self._pending = []

    def check_export(self) -> None:
        """Refuse to write over an output that somebody has edited since a run made it.

        Raises:
            OutputError: it is not what a run left.

        """
        path = self.files.output
        if path == self.files.records or not self._exported or not path.exists():
            return
        if file_digest(path) not in self._exported:
            raise OutputError(
                f"{path} was changed after the run that wrote it: move it away, and the same "
                "command writes it again, or start over with --restart, which deletes it"
            )

    def note_export(self, path: Path) -> None:
        """Remember a file that is about to become the output."""
        if (told := file_digest(path)) not in self._exported:
            self._exported.add(told)
            with self._writing():
                self._log.append_export(told)

    def claim(self, content: bytes) -> bool:
        """Whether a file of this content is not captioned yet; then it is the caller's to do."""
        if content in self._contents:
            return False
        self._contents[content] = None
        return True

    def twin(self, content: bytes) -> dict[str, Any] | None:
        """Read the record of the first photo with this content; None if it came to none.

        Raises:
            OutputError: there is another line in its place.

        """
        entry = self._contents.get(content)
        if entry is None:
            return None
        record = parsed(self._lines.line(entry.file, entry.offset))
        if record is None or digest(str(record.get("image"))) != entry.name:
            raise changed(self.paths[entry.file])
        return record

    def _remember(self, entry: Entry, *, standing: bool = False) -> None:
        """Take an entry in; a standing error is that of a photo that has its record too."""
        self.done.add(entry.name)
        if entry.file == ERRORS:
            self.counts[ERRORS] += 1
            self._failed.add(entry.name)
            if standing:
                self._standing.add(entry.name)
        elif entry.name not in self._standing:
            self.counts[entry.file] += 1
            if entry.content != _NOTHING and self._contents.get(entry.content) is None:
                self._contents[entry.content] = entry

    def _open(self, settings: Mapping[str, Any], *, restart: bool) -> None:
        if self.files.review_owner is not None:
            self._owner = CommitLog(self.files.review_owner)
        own = self.files.check_review()
        lines = self._log.read()
        known = next(lines, None)
        self.written.part = self._log.part
        self.written.remove_part(self.files.output)
        if isinstance(known, dict) and restart:
            self._forget(known, settings)
            known = None
        elif isinstance(known, dict):
            check_settings(self.output, known, settings)
            for commit in lines:
                if isinstance(commit, Commit):
                    self._learn(commit)
                elif isinstance(commit, str):
                    self._exported.add(commit)
            self.check_export()
        else:
            self.files.check_unused()
        self._lines.open(self._ends, whole=self._log.whole)
        self._log.settle()
        if self._owner is not None:
            self._owner.begin_once({"review_of": own})
        if known is None:
            self._log.begin(settings)
            self.written.part = self._log.part
        self._log.whole = True  # when it is closed, but for what is pending then
        for file in filter(None, self.paths):
            sync_folder(file.absolute().parent)  # or a power cut could take a new file

    def _forget(self, known: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Remove what the known run wrote; files of others stay, and are refused."""
        review = self.files.review
        if review is not None and known.get("review") != settings.get("review"):
            check_free(review)
        self.written.take_back()
        for path in filter(None, self.paths):
            path.unlink(missing_ok=True)
        self._log.clear()

    def _learn(self, commit: Commit) -> None:
        if commit.retry:
            self._forget_errors()
        self._ends = list(commit.ends)
        self.batch_size = commit.batch_size
        for entry in commit.entries:
            # Ctrl-C may come after a commit has reached the disk and before its process knows it:
            # then the same entries are there twice.
            known = self._failed if entry.file == ERRORS else self.done
            if entry.name not in known:
                self._remember(entry, standing=entry.name in self.done)

    def _void_errors(self) -> None:
        """Take the photos that failed for not done; the log knows before the file is emptied."""
        self._forget_errors()
        self._ends[ERRORS] = 0
        self._log.append(Commit(ends=self._ends, batch_size=self.batch_size, retry=True))
        self._lines.empty(ERRORS)

    def _forget_errors(self) -> None:
        self.done -= self._failed
        self._failed.clear()
        self.counts[ERRORS] = 0

    @property
    def failed(self) -> frozenset[bytes]:
        """Digests of the names that failed."""
        return frozenset(self._failed)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn what the operating system says into an OutputError that names the remedy."""
        try:
            yield
        except OSError as error:
            what = f" ({error.filename})" if error.filename else ""
            raise OutputError(
                f"{self.output} cannot be written{what}: {error.strerror}. What was done stays: "
                "fix that, and the same command goes on from there"
            ) from error
