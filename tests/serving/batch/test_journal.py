"""The files of a run: whose they are, and what a torn line costs."""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from captioner import Captioner, ConfigError, OutputError
from captioner.digest import digest
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.journal import commits
from captioner_serving.batch.journal.commits import CommitLog, check_settings
from captioner_serving.batch.journal.journal import RECORDS, Journal

Photos = Callable[..., Path]


def test_an_output_needs_its_folder(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no folder"):
        list(caption_batch(photos(2), output=tmp_path / "no" / "c.jsonl", captioner=tiny))


def test_one_run_at_a_time(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    folder, output = photos(40), tmp_path / "c.jsonl"
    first = caption_batch(folder, output=output, captioner=tiny, config=BatchConfig(batch_size=1))
    next(first)
    with pytest.raises(OutputError, match=r"another run is writing to c\.jsonl"):
        list(caption_batch(folder, output=output, captioner=tiny))
    first.close()
    list(caption_batch(folder, output=output, captioner=tiny))
    assert len(output.read_text().splitlines()) == 40


def test_a_refused_run_removes_no_file_that_another_could_have_locked(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "c.jsonl"
    progress, unlink = Path(f"{output}.progress.jsonl"), Path.unlink
    locked: list[bool] = []

    def another(file: Path, *, missing_ok: bool = False) -> None:
        """Try to lock the file just before it is removed."""
        if file == progress:
            with file.open("ab") as theirs, suppress(BlockingIOError):
                locked.append(False)
                fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked.append(True)
        unlink(file, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", another)
    config = BatchConfig(min_score=0.0, review=str(tmp_path / "no" / "unsure.jsonl"))
    with pytest.raises(OutputError, match="no/unsure"):
        list(caption_batch(photos(2), output=output, captioner=tiny, config=config))
    assert locked == [False] and not progress.exists()


def test_a_run_holds_the_file_that_is_there_though_a_refused_one_removed_it(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, output = photos(2), tmp_path / "c.jsonl"
    flock = fcntl.flock

    def opened(file: BinaryIO, operation: int) -> None:
        """Remove the file between its opening and its lock."""
        monkeypatch.undo()
        Path(f"{output}.progress.jsonl").unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", opened)
    run = caption_batch(folder, output=output, captioner=tiny)
    next(run)
    with pytest.raises(OutputError, match=r"another run is writing to c\.jsonl"):
        list(caption_batch(folder, output=output, captioner=tiny))
    run.close()
    assert list(caption_batch(folder, output=output, captioner=tiny)) == []


def add(journal: Journal, number: int) -> None:
    journal.add(
        bytes([number]) * 16, bytes([number, 9]) * 8, RECORDS, {"image": str(number), "model": {}}
    )


def written(output: str, *, commits: int) -> tuple[Path, bytes, bytes]:
    """Write a journal; its log, what is in the log, and the records."""
    with Journal(output, BatchConfig(), {}) as journal:
        for number in range(commits):
            add(journal, number)
            journal.commit()
    log = Path(f"{output}.progress.jsonl")
    return log, log.read_bytes(), Path(output).read_bytes()


def test_a_torn_log_loses_only_its_last_commit(tmp_path: Path) -> None:
    """Cut anywhere, the log gives back what its whole lines say, and goes on from there."""
    output, config = str(tmp_path / "c.jsonl"), BatchConfig()
    log, data, records = written(output, commits=4)
    lines = data.splitlines(keepends=True)
    for cut in range(len(lines[0]), len(data), 7):
        log.write_bytes(data[:cut])
        Path(output).write_bytes(records)
        whole = data[:cut].count(b"\n") - 1
        with Journal(output, config, {}) as journal:
            assert journal.counts == [whole, 0, 0]
            for number in range(whole, 4):
                add(journal, number)
            journal.commit()
        assert Path(output).read_bytes() == records
    assert base64.b64decode(json.loads(lines[1])["entries"])[:16] == bytes(16)


def test_a_log_that_is_damaged_in_its_midst_loses_nothing(tmp_path: Path) -> None:
    """A power cut tears the last line; another that is broken is no reason to cut the rest off."""
    output, config = str(tmp_path / "c.jsonl"), BatchConfig()
    log, data, records = written(output, commits=6)
    lines = data.splitlines(keepends=True)
    for broken in (lines[2].replace(b"{", b"\xff", 1), b"\0" * len(lines[2])):
        damaged = b"".join([*lines[:2], broken, *lines[3:]])
        log.write_bytes(damaged)
        with pytest.raises(OutputError, match=r"progress\.jsonl is damaged in line 3: put it back"):
            Journal(output, config, {})
        assert (log.read_bytes(), Path(output).read_bytes()) == (damaged, records)
    log.write_bytes(data)
    with Journal(output, config, {}) as journal:
        assert journal.counts == [6, 0, 0]


def test_half_a_commit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full, and has room again: nothing is glued to what it left."""
    output, write = str(tmp_path / "c.jsonl"), commits.write_all

    def full(file: BinaryIO, data: bytes) -> None:
        write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(output, BatchConfig(), {}) as journal:
        add(journal, 0)
        journal.commit()
        add(journal, 1)
        with monkeypatch.context() as patch, pytest.raises(OutputError, match="No space left"):
            patch.setattr(commits, "write_all", full)
            journal.commit()
        journal.commit()
        journal.close()  # what is closed may be closed again
    for _ in range(2):
        with Journal(output, BatchConfig(), {}) as journal:
            assert journal.counts == [2, 0, 0]


def test_a_journal_that_was_shortened_is_refused(
    tiny: Captioner, photos: Photos, tmp_path: Path
) -> None:
    output = tmp_path / "c.jsonl"
    list(caption_batch(photos(3), output=output, captioner=tiny))
    os.truncate(output, 10)
    with pytest.raises(OutputError, match="put the file back"):
        list(caption_batch(photos(3), output=output, captioner=tiny))


def test_a_commit_that_ctrl_c_repeats_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "c.jsonl")
    append = CommitLog.append

    def interrupted(log: CommitLog, commit: Any) -> None:
        append(log, commit)
        raise KeyboardInterrupt

    with Journal(path, BatchConfig(), {}) as journal:
        journal.add(b"a" * 16, b"1" * 16, RECORDS, {"image": "a"})
        monkeypatch.setattr(CommitLog, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.commit()
        monkeypatch.undo()
        journal.commit()
    with Journal(path, BatchConfig(), {}) as journal:
        assert journal.counts == [1, 0, 0]
    assert len(Path(path).read_text().splitlines()) == 1


def test_a_record_stands_when_what_belongs_to_it_fails(tmp_path: Path) -> None:
    path, name, content = str(tmp_path / "c.jsonl"), digest("a"), b"1" * 16
    record = {"image": "a", "caption": "a dog"}
    with Journal(path, BatchConfig(), {}) as journal:
        journal.add(name, content, RECORDS, record, failure={"image": "a", "error": {}})
        journal.commit()
    for counts in ([1, 0, 0], [1, 0, 0]):
        with Journal(path, BatchConfig(retry_errors=True), {}) as journal:
            assert (journal.counts, name in journal.done) == (counts, False)
            assert (journal.claim(content), journal.twin(content)) == (False, record)
            journal.add(name, content, RECORDS, record, failure={"image": "a", "error": {}})
            journal.commit()
            assert journal.counts == [1, 1, 0]
    with Journal(path, BatchConfig(retry_errors=True), {}) as journal:
        journal.add(name, content, RECORDS, record)
        journal.commit()
    with Journal(path, BatchConfig(), {}) as journal:
        assert (journal.counts, journal.done) == ([1, 0, 0], {name})
    assert len(Path(path).read_text().splitlines()) == 1


def test_a_run_of_an_older_version_goes_on() -> None:
    check_settings("c.jsonl", {"beam_size": 5}, {"beam_size": 5, "different_around": "and"})
    check_settings("c.jsonl", {"beam_size": 5}, {"beam_size": 5, "style": ""})
    with pytest.raises(ConfigError, match="--style was not given and is loud"):
        check_settings("c.jsonl", {"beam_size": 5}, {"beam_size": 5, "style": "loud"})
    with pytest.raises(ConfigError, match="--beam-size was 5 and is 4"):
        check_settings("c.jsonl", {"beam_size": 5}, {"beam_size": 4, "different_around": "and"})
