"""Benchmarks of what is not here, a GPU and COCO, run dry: their numbers mean nothing."""

from __future__ import annotations

import pytest

from captioner_training.data import grids
from tests.benchmarks import gpu, simulated_coco

pytestmark = pytest.mark.slow

SMALL = ["gpu", "--device", "cpu", "--small"]


def test_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", SMALL)
    assert gpu.main() == 0
    output = capsys.readouterr().out
    for kind in ("frozen", "fine-tuning", "self-critical"):
        assert output.count(f"\n{kind}, 4 photos ") == 1
    assert output.count("with trust and consensus: Captioner('bundled'") == 1
    for name in ("one photo", "2 at once", "Captioner.caption(list)", "captioner batch"):
        assert output.count(f"\n{name}  ") == 1


@pytest.mark.parametrize(("recipe", "resident"), [("coco-fast", False), ("coco", True)])
def test_an_epoch_of_each_kind(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recipe: str,
    *,
    resident: bool,
) -> None:
    for module in (grids, simulated_coco):
        monkeypatch.setattr(module, "fits_on_gpu", lambda *_: resident)
    monkeypatch.setattr("sys.argv", [*SMALL, "--simulate-coco", "--recipe", recipe])
    assert gpu.main() == 0
    output = capsys.readouterr().out
    assert f"An epoch of each stage of {recipe}: 8 photos" in output
    for kind in ("frozen", "fine-tuning", "self-critical"):
        assert output.count(f"\n{kind}, eager ") == 1
    assert "nan" not in output
