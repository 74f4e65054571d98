"""The files of a run: locks, torn lines and failed commits."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from captioner import Captioner, OutputError
from captioner.shared.files import digest
from captioner_serving.batch import BatchConfig, caption_batch, journal
from captioner_serving.batch.files import RunFiles
from captioner_serving.batch.journal import Journal
from tests.serving.batch.conftest import Photos, read_lines

SETTINGS: dict[str, Any] = {}


def record(name: str) -> dict[str, Any]:
    return {"image": name, "caption": "a dog", "score": -1.0, "model": {}}


def failure(name: str) -> dict[str, Any]:
    return {"image": name, "error": OutputError("its sidecar").record()}


def test_one_run_at_a_time(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they call the file."""
    folder, output = photos(3), tmp_path / "c.jsonl"
    monkeypatch.chdir(folder)
    first = caption_batch(folder, output=output, captioner=tiny, config=BatchConfig(batch_size=1))
    next(first)
    for name in (output, "../c.jsonl"):
        with pytest.raises(OutputError, match=r"another run is writing to c\.jsonl"):
            list(caption_batch(folder, output=name, captioner=tiny))
    first.close()
    list(caption_batch(folder, output=output, captioner=tiny))
    assert len(output.read_text().splitlines()) == 3


def test_a_failed_commit_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a full disk has room again, no line is appended to a torn line."""
    files, write = RunFiles(tmp_path / "c.jsonl"), journal.write_all

    def full(file: BinaryIO, data: bytes) -> None:
        write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    for names in ("abc", "de"):  # a new run, and one that resumes
        with Journal(files, SETTINGS) as run:
            for name in names:
                run.add(record(name))
                with monkeypatch.context() as patch, pytest.raises(OutputError, match="No space"):
                    patch.setattr(journal, "write_all", full)
                    run.commit()
                run.commit()
            run.close()  # closing twice is allowed
    for _ in range(2):
        with Journal(files, SETTINGS) as run:
            assert (run.counts, len(run.done)) == ([5, 0], 5)
    assert [line["image"] for line in read_lines(files.records)] == list("abcde")


def test_a_read_only_file_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, opened = RunFiles(tmp_path / "c.jsonl"), Path.open
    Journal(files, SETTINGS).close()

    def read_only(path: Path, mode: str = "r", **more: Any) -> Any:
        if path == files.records and mode != "rb":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, mode, **more)

    monkeypatch.setattr(Path, "open", read_only)
    with pytest.raises(OutputError, match="Permission denied"):
        Journal(files, SETTINGS)


def test_a_failure_is_on_disk_before_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in between leaves a photo to caption again, not one without a sidecar."""
    files, sizes = RunFiles(tmp_path / "c.jsonl"), []
    paths = files.errors, files.records
    with Journal(files, SETTINGS) as run:
        run.add(record("a"), failure=failure("a"))
        monkeypatch.setattr(os, "fsync", lambda _: sizes.append([p.stat().st_size for p in paths]))
        run.commit()
    states = [tuple(size > 0 for size in state) for state in sizes]
    assert list(dict.fromkeys(states)) == [(True, False), (True, True)]


def test_a_killed_retry_is_resumed(tmp_path: Path) -> None:
    """Retried photos count; the others are captioned again without --retry-errors."""
    files, settings = RunFiles(tmp_path / "c.jsonl"), SETTINGS
    with Journal(files, settings) as run:
        for name in "abcd":
            run.add(failure(name) | {"error": {"type": "image-empty"}})
        run.add(record("e"), failure=failure("e"))
        run.commit()
    run = Journal(files, settings, retry_errors=True)
    run.add(record("a"))
    run.add(record("b"))
    run.add(failure("c") | {"error": {"type": "image-empty"}})
    run.commit()
    run._lock._lock.release()  # a kill does not close the run
    with Journal(files, settings) as again:
        assert again.done == set(map(digest, "abce"))
        assert again.failed == set(map(digest, "ce"))
    with Journal(files, settings, retry_errors=True) as last:
        assert (last.counts, last.done) == ([3, 0], set(map(digest, "ab")))
        last.add(failure("e") | {"error": {"type": "image-empty"}})  # now the photo fails too
        last.commit()
        last.finish()
    with Journal(files, settings) as after:
        assert (after.counts, after.failed) == ([3, 1], {digest("e")})
    with Journal(files, settings, retry_errors=True) as last:
        assert last.done == set(map(digest, "ab"))
        last.add(record("e"))
        last.commit()
        last.finish()
    assert len(files.records.read_text().splitlines()) == 3 and not files.errors.exists()


def test_a_failure_without_its_record_is_cut_off(tmp_path: Path) -> None:
    """A kill between the two files of a commit: the photo is captioned again."""
    files = RunFiles(tmp_path / "c.jsonl")
    with Journal(files, SETTINGS) as run:
        run.add(record("a"), failure=failure("a"))
        run.add(record("b"), failure=failure("b"))
        run.commit()
    first, _ = files.records.read_bytes().splitlines(keepends=True)
    failed, _ = files.errors.read_bytes().splitlines(keepends=True)
    files.records.write_bytes(first)
    with Journal(files, SETTINGS) as run:
        assert run.done == run.failed == {digest("a")} and run.counts == [1, 1]
    assert files.errors.read_bytes() == failed


def test_every_name_is_read_from_its_line(tmp_path: Path) -> None:
    files, names = RunFiles(tmp_path / "c.jsonl"), ('a", "b', "a\\", "\udcff", "\\udcff")
    with Journal(files, SETTINGS) as run:
        for name in names:
            run.add(record(name))
        run.commit()
    with Journal(files, SETTINGS) as run:
        assert run.done == {*map(digest, names)}
