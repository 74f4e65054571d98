"""Benchmarks of what is not here, a GPU and COCO, run dry: their numbers mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import launcher
from tests.benchmarks import coco_scale, gpu

pytestmark = pytest.mark.slow


def test_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--small"])
    assert gpu.main() == 0
    output = capsys.readouterr().out
    for kind in ("frozen", "fine-tuning", "self-critical"):
        assert output.count(f"\n{kind}, 4 photos: ") == 1
    assert output.count("encoder and search") == 2
    assert output.count(" of 8 files: ") == 2


def test_an_epoch_of_each_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--small", "--simulate-coco"])
    assert gpu.main() == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.partition(" in ")[0] for line in lines] == [
        "frozen: 8 photos", "fine-tuning: 8 photos", "self-critical: 8 photos",
    ]  # fmt: skip


def test_coco(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", launcher.PATH)
    monkeypatch.setattr(coco_scale, "SPLITS", {"train": 24, "val": 2})
    monkeypatch.setattr(coco_scale, "STEPS", 1)
    monkeypatch.setattr("sys.argv", ["coco_scale", "--scratch", str(tmp_path)])
    assert coco_scale.main() == 0
    said = capsys.readouterr().out
    assert [line.split(":")[0] for line in said.split("\n\n")[1:]] == [
        "prepare", "frozen", "fine-tuning",
    ]  # fmt: skip
    assert said.count("the device waits for data") == 2
    assert said.count("of 24 photos (measured): encoding") == 2
    assert said.count("grids 0.003 GB") == 1  # of 24 and 2 photos, and when frozen alone
    assert not any(tmp_path.iterdir())
