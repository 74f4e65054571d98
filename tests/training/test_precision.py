"""A recipe's precision: what it says is done; what it leaves open the hardware decides, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from captioner.device import best_dtype
from captioner.errors import ConfigError
from captioner_training.distributed import Processes
from captioner_training.precision import autocast_of, dtype_of, settled, told_precision
from captioner_training.recipe import DataConfig, Recipe, ScenesConfig, Stage
from captioner_training.recipe_file import load_recipe
from captioner_training.run_recipe import goes_on, plain, recipe_there
from tests.launcher import environment, run
from tests.training.runs import RECIPE

CPU = Processes(device=torch.device("cpu"))
# Lines of /proc/cpuinfo as they are on AMD's Zen 5, an ARM of Amazon's, and Intel's Ice Lake.
ZEN = "model name\t: AMD EPYC\nflags\t\t: fpu avx2 avx512f avx512_bf16 avx512_vnni\n"
ARM = "Features\t: fp asimd i8mm bf16 dgh\n"
WITHOUT = "flags\t\t: fpu avx2 avx512f avx512_vnni\nbugs\t\t: bf16\n"


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(request.param)
    monkeypatch.setattr("captioner.device.Path", lambda _: path)
    monkeypatch.setattr("platform.system", lambda: "Linux")


def recipe(precision: str | None = None) -> Recipe:
    fields = {} if precision is None else {"precision": precision}
    data = DataConfig(scenes=ScenesConfig())
    return Recipe(name="t", data=data, stages=(Stage(epochs=1),), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "cpu", "dtype", "told"),
    [
        (None, ZEN, "bfloat16", "computing in bfloat16: the CPU has avx512_bf16"),
        (None, ARM, "bfloat16", "computing in bfloat16: the CPU has bf16"),
        (None, WITHOUT, "float32", "computing in float32: the CPU has no bfloat16"),
        ("auto", WITHOUT, "float32", "computing in float32: the CPU has no bfloat16"),
        (
            *("bfloat16", WITHOUT, "bfloat16"),
            "computing in bfloat16, as this run is to, though the CPU has no bfloat16",
        ),
        (
            *("float32", ZEN, "float32"),
            "computing in float32, as this run is to, though the CPU has avx512_bf16",
        ),
    ],
    indirect=["cpu"],
)
@pytest.mark.usefixtures("cpu")
def test_precision(precision: str | None, dtype: str, told: str) -> None:
    made = recipe(precision)
    assert str(dtype_of(made, CPU.device)) == f"torch.{dtype}"
    assert told_precision(made, CPU.device) == told
    decided = settled(made, CPU, before=None).precision
    assert decided == dtype
    one = torch.ones(2, 2)
    with autocast_of(made, CPU.device):
        assert str((one @ one).dtype) == f"torch.{dtype}"


@pytest.mark.parametrize("cpu", [ZEN, WITHOUT], indirect=True)
@pytest.mark.usefixtures("cpu")
def test_a_run_keeps_to_what_was_decided() -> None:
    for before in ("bfloat16", "float32"):
        assert settled(recipe(), CPU, before={"precision": before}).precision == before
        assert (
            settled(recipe("bfloat16"), CPU, before={"precision": before}).precision == "bfloat16"
        )


class OfTwo(Processes):
    """One of two processes, whose main one has other hardware."""

    def broadcast(self, value: Any) -> Any:
        return {"bfloat16": "float32", "float32": "bfloat16"}[value]


def test_the_main_process_decides_for_all() -> None:
    alone = settled(recipe(), CPU, before=None).precision
    second = settled(recipe(), OfTwo(device=CPU.device, rank=1, world=2), before=None).precision
    assert {alone, second} == {"bfloat16", "float32"}


def test_an_older_run_goes_on_by_the_name_of_now(tmp_path: Path) -> None:
    noted = {**plain(recipe("bfloat16")), "precision": "bf16"}
    file = tmp_path / "t.yaml"
    file.write_text(json.dumps(noted))  # which YAML reads too
    asked = load_recipe(str(file))
    assert goes_on(noted, asked, tmp_path, finished=False) == "as it is"
    assert asked.precision == "bfloat16"
    with pytest.raises(ConfigError, match="'bfloat16' there, 'float32' now"):
        goes_on(noted, recipe("float32"), tmp_path, finished=False)


def test_what_a_folder_has_is_known_from_its_note_or_its_state(tmp_path: Path) -> None:
    """A dry run decides nothing for a real one, and a folder of neither is none of a run."""
    noted = {**plain(recipe("float32")), "max_steps": 2}
    (tmp_path / "recipe.json").write_text(json.dumps(noted))
    assert recipe_there(tmp_path, dry=True) is None
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "step-000000002.pt").touch()
    there = recipe_there(tmp_path, dry=True)
    assert there is not None and there["precision"] == "float32"
    assert recipe_there(tmp_path, dry=False) is None


def test_a_run_goes_on_in_its_own_precision_and_says_what_is_otherwise(tmp_path: Path) -> None:
    """Begun in what this machine would not choose, as a run that comes from another machine."""
    fast = best_dtype(CPU.device)[0] is torch.bfloat16
    first, other = ("float32", "bfloat16") if fast else ("bfloat16", "float32")
    file, out = tmp_path / "recipe.yaml", tmp_path / "run"
    file.write_text(RECIPE)
    train = ("train", file, "--out", out, "--max-steps", "1")
    begun = run(*train, "--precision", first, timeout=300)
    assert begun.returncode == 0, begun.stderr
    assert "as this run is to, though the CPU has " in begun.stderr
    assert "note: the run had" not in begun.stderr
    again = run(*train)
    assert again.returncode == 0 and "this run is finished" in again.stderr
    (out / "finished.json").unlink()  # as if it had been killed before its last line
    threads = "2" if torch.get_num_threads() == 1 else "1"
    then = run(*train, env=environment(OMP_NUM_THREADS=threads))
    assert then.returncode == 0, then.stderr
    (note,) = [line for line in then.stderr.splitlines() if "note: the run had" in line]
    assert f"goes on with torch {torch.__version__}, 1 x cpu, {threads} threads;" in note
    for name in ("recipe.json", "finished.json"):
        noted = json.loads((out / name).read_text())
        assert noted.get("recipe", noted)["precision"] == first
    refused = run(*train, "--precision", other)
    assert refused.returncode == 2
    assert f"precision: '{first}' there, '{other}' now" in refused.stderr
