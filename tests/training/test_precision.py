"""A recipe's precision: what it says is done, and what it leaves open is chosen by the hardware."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from captioner_training.machinery.processes import Processes
from captioner_training.precision import autocast_of, conditions_of, dtype_of, told_precision
from captioner_training.recipe import DataConfig, Recipe, ScenesConfig, Stage
from tests.launcher import environment, run
from tests.training.runs import RECIPE

CPU = Processes(device=torch.device("cpu"))
# As /proc/cpuinfo has them: AMD's Zen 5 and Intel's Ice Lake.
WITH, WITHOUT = {"avx512f", "avx512_bf16"}, {"avx512f", "avx512_vnni"}


def recipe(precision: str | None = None) -> Recipe:
    fields = {} if precision is None else {"precision": precision}
    data = DataConfig(scenes=ScenesConfig())
    return Recipe(name="t", data=data, stages=(Stage(epochs=1),), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "flags", "name", "why"),
    [
        (None, WITH, "bfloat16", "the CPU has avx512_bf16"),
        (None, WITHOUT, "float32", "the CPU has no bfloat16"),
        ("auto", WITHOUT, "float32", "the CPU has no bfloat16"),
        ("bf16", WITHOUT, "bfloat16", "as the recipe asks"),
        ("float32", WITH, "float32", "as the recipe asks"),
    ],
)
def test_precision(
    precision: str | None, flags: set[str], name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captioner.precision._cpu_flags", lambda: flags)
    made = recipe(precision)
    assert str(dtype_of(made, CPU.device)) == f"torch.{name}"
    assert told_precision(made, CPU.device) == f"computing in {name}: {why}"
    assert conditions_of(made, CPU).endswith(f" threads, {name}")
    one = torch.ones(2, 2)
    with autocast_of(made, CPU.device):
        assert str((one @ one).dtype) == f"torch.{name}"


def test_a_run_says_how_it_computes_and_that_it_goes_on_otherwise(tmp_path: Path) -> None:
    file, out = tmp_path / "recipe.yaml", tmp_path / "run"
    file.write_text(RECIPE)
    train = ("train", file, "--out", out, "--max-steps", "1")
    first = run(*train, "--precision", "float32", timeout=300)
    assert first.returncode == 0, first.stderr
    assert "computing in float32: as the recipe asks" in first.stderr
    assert "note: the run began with" not in first.stderr
    (out / "finished.json").unlink()  # as if it had been killed before its last line
    threads = str(torch.get_num_threads() + 1)
    then = run(*train, "--precision", "float32", env=environment(OMP_NUM_THREADS=threads))
    assert then.returncode == 0, then.stderr
    (note,) = [line for line in then.stderr.splitlines() if "note: the run began with" in line]
    assert f"{threads} threads, float32; the numbers will differ" in note
    other = run(*train, "--precision", "bf16")
    assert other.returncode == 2 and "precision" in other.stderr
