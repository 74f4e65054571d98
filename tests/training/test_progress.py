"""Progress of long tasks where no terminal is."""

from __future__ import annotations

import pytest

from captioner_training.distributed import show_progress


def test_lines_at_the_start_and_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 4.0, 11.0, 11.0, 12.0, 22.0, 22.0, 40.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with show_progress("encoding", 5000) as advance:
        assert capsys.readouterr().err == "encoding 5,000 images\n"  # before the first is done
        for _ in range(5):
            advance(1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["encoding images: 2,000 of 5,000", "encoding images: 4,000 of 5,000"]


def test_other_processes_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("drawing", 20, unit="scenes", quiet=True) as advance:
        advance(20)
    assert capsys.readouterr().err == ""
