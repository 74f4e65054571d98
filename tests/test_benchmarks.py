"""The benchmark for a GPU, run with tiny sizes on the CPU: its numbers mean nothing."""

from __future__ import annotations

import pytest

from tests.benchmarks import gpu


@pytest.mark.slow
def test_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--device", "cpu", "--small"])
    assert gpu.main() == 0
    output = capsys.readouterr().out
    for kind in ("frozen", "fine-tuning", "self-critical"):
        assert output.count(f"\n{kind}, 4 photos ") == 1
    assert output.count("with trust and consensus: Captioner('bundled'") == 1
    for name in ("one photo", "2 at once", "Captioner.caption(list)", "captioner batch"):
        assert output.count(f"\n{name}  ") == 1
