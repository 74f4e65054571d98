"""An ablation from the command to its table, on drawn scenes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from captioner.errors import CheckpointError, ConfigError
from captioner.inference.device import best_dtype
from captioner.model.config import DecoderConfig
from captioner_training import ablation as ablation_module
from captioner_training.ablation import (
    VARIANTS,
    Ablation,
    count_parameters,
    decoder_variants,
    table_text,
)
from captioner_training.distributed import Processes
from captioner_training.recipe import Recipe
from captioner_training.recipe_file import load_recipe
from tests.launcher import Run
from tests.refusals import Refusals, check_refusals
from tests.training.runs import MODEL

RECIPE = (
    MODEL
    + """
name: miniature
data: {scenes: {train: 24, validation: 10}, minimum_count: 1, workers: 0}
generation: {beam_size: 2, minimum_length: 2, maximum_length: 6}
stages:
  - {epochs: 1, batch_size: 12, warmup: 1}
"""
)
SIZES = {"grid_dim": 1280, "vocabulary_size": 3574}
BUNDLED = DecoderConfig(embedding_dim=512, hidden_dim=512, attention_dim=256, value_dim=512)


def test_every_variant_has_the_sizes_of_the_base() -> None:
    base = replace(
        BUNDLED, score="scaled_dot", heads=2, query="current", positions="binary", value_dim=64
    )
    found = decoder_variants(base, **SIZES)
    assert found["additive-previous"] == BUNDLED  # of the base, sizes alone count
    assert tuple(found) == VARIANTS
    assert found["none-current"].score == "none" and found["none-current"].query == "current"
    assert found["sine-previous"].positions == "sine" != found["additive-previous"].positions
    assert found["heads-previous"].heads == 4 and found["heads-previous"].score == "scaled_dot"
    assert {one.hidden_dim for name, one in found.items() if name != "transformer"} == {512}


@pytest.mark.parametrize("base", [BUNDLED, DecoderConfig(embedding_dim=64, hidden_dim=96)])
def test_the_transformer_has_as_many_parameters_within_2_percent(base: DecoderConfig) -> None:
    found = decoder_variants(base, **SIZES)
    ours, theirs = (
        count_parameters(found[name], **SIZES) for name in ("transformer", "additive-previous")
    )
    assert ours == pytest.approx(theirs, rel=0.02)


def test_sizes_that_allow_no_transformer_are_refused() -> None:
    base = DecoderConfig(embedding_dim=512, hidden_dim=4, attention_dim=4, layers=100)
    with pytest.raises(ConfigError, match=r"lower decoder\.layers"):
        decoder_variants(base, **SIZES)


def test_precision_is_resolved_before_the_first_run(tmp_path: Path) -> None:
    (tmp_path / "miniature.yaml").write_text(RECIPE)
    ablation = Ablation(
        load_recipe(str(tmp_path / "miniature.yaml"), {}),
        out=tmp_path / "out",
        processes=Processes(device=torch.device("cpu")),
        train=lambda *_, **__: tmp_path,
    )
    fast = best_dtype(torch.device("cpu"))[0] is torch.bfloat16
    assert ablation.recipe.precision == ("bfloat16" if fast else "float32")


class Recorded(Processes):
    """One of two processes, without the other: what is told to it is written down."""

    told: ClassVar[list[object]] = []

    def broadcast(self, value: Any) -> Any:
        self.told.append(value)
        return value if self.main else True  # as if the main one had failed


@pytest.mark.parametrize("rank", [0, 1])
def test_failure_in_the_main_process_ends_the_others(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "miniature.yaml").write_text(RECIPE)
    waits = list[float]()
    monkeypatch.setattr("time.sleep", waits.append)
    none = tmp_path / "none.safetensors"
    ablation = Ablation(
        load_recipe(str(tmp_path / "miniature.yaml"), {}),
        variants=("none-previous",),
        out=tmp_path / "out",
        processes=Processes(device=torch.device("cpu")),
        train=lambda *_, **__: none,
    )
    Recorded.told.clear()
    ablation.processes = Recorded(device=torch.device("cpu"), rank=rank, world=2)
    with pytest.raises(SystemExit if rank else CheckpointError):
        ablation.run()
    assert Recorded.told == [not rank]
    assert sum(waits) == 10 * rank  # seconds, in which the main process prints its error


def test_each_seed_trains_and_measures_each_variant_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenes and grids are shared by the runs of a seed."""
    (tmp_path / "miniature.yaml").write_text(RECIPE)
    few = {"data.scenes.train": "2", "data.scenes.validation": "1"}
    recipe, trained = load_recipe(str(tmp_path / "miniature.yaml"), few), list[object]()

    def train(recipe: Recipe, *, out: Path, shared: Path, **_: object) -> Path:
        trained.append((recipe.seed, recipe.decoder.score, out.name, shared.name))
        out.mkdir(parents=True)
        return out

    ablation = Ablation(
        recipe, out=tmp_path / "out", processes=Processes(device=torch.device("cpu")),
        train=train, variants=("none-previous", "dot-current"), seeds=(3,), deletion=4,
    )  # fmt: skip
    monkeypatch.setattr(ablation_module, "load_checkpoint", lambda _: None)
    monkeypatch.setattr(Ablation, "_measure", lambda *_: measured(40.0 + len(trained)))
    assert "| none-previous | 41.0 | 2.00 M |" in ablation.run()
    ablation.seeds = (3, 5)
    text = ablation.run()  # measured as the first, third, second and fourth one
    assert "| none-previous | 42.0 (41.0 to 43.0) |" in text
    assert "| dot-current | 43.0 (42.0 to 44.0) |" in text
    assert trained == [
        (seed, name.partition("-")[0], f"{name}-{seed}", f"shared-{seed}")
        for seed in (3, 5)
        for name in ("none-previous", "dot-current")
    ]


def measured(value: float, **ends: float) -> dict[str, dict[str, float]]:
    return {"CIDEr": {"value": value, **ends}, "parameters": {"value": 2e6}}


def test_table_shows_the_range_of_seeds_or_the_interval_over_images() -> None:
    several = table_text({"dot": [measured(40), measured(43), measured(46)]})
    assert "| dot | 43.0 (40.0 to 46.0) | 2.00 M |" in several
    assert "the range of 3 seeds" in several
    one = table_text({"dot": [measured(40, low=38.5, high=41)]})
    assert "| dot | 40.0 (38.5 to 41.0) | 2.00 M |" in one and "95 % intervals over images" in one
    assert "BLEU-4" not in one  # not measured


@pytest.mark.slow
def test_ablation_trains_measures_and_resumes(run_captioner: Run, tmp_path: Path) -> None:
    (tmp_path / "miniature.yaml").write_text(RECIPE)
    command = ("ablate", tmp_path / "miniature.yaml", "--out", tmp_path / "out", "--device", "cpu")
    few = ("--deletion", 4, "--variants", "none-previous", "transformer")
    fast = best_dtype(torch.device("cpu"))[0] is torch.bfloat16
    other = "float32" if fast else "bfloat16"  # as where the ablation comes from another machine
    first = run_captioner(*command, *few, "--precision", other)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0].startswith("| variant |") and "pointing" in lines[0]
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| none-previous", "| transformer"]
    out = tmp_path / "out"
    assert (out / "table.md").read_text() == first.stdout
    # Of train and val; and of val again with the encoder as a checkpoint rounds it. For all runs.
    assert len(list((out / "shared-1" / "cache").iterdir())) == 3
    # What is done stays as it is, and is not trained again.
    path = out / "transformer-1" / "measures.json"
    known = json.loads(path.read_text())
    known["measures"]["CIDEr"] = {"value": 77.0}
    path.write_text(json.dumps(known))
    again = run_captioner(*command, *few, "learned-previous")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("\n| ") == 1 + 3
    assert "77.0" in again.stdout and again.stderr.count("training images") == 1
    recipes = [json.loads(path.read_text()) for path in out.glob("*/recipe.json")]
    assert [one["precision"] for one in recipes] == [other] * 3
    other_rate = run_captioner(*command, *few, "--stages.1.learning_rate", "0.5")
    assert (other_rate.returncode, other_rate.stdout) == (2, ""), other_rate.stderr
    assert "none-previous-1 has a run of another recipe" in other_rate.stderr
    assert "stages.1.learning_rate was" in other_rate.stderr
    # More epochs continue every run, whose measures are then taken anew.
    longer = run_captioner(*command, *few, "--stages.1.epochs", 2)
    assert longer.returncode == 0, longer.stderr
    assert longer.stderr.count("epoch 2/2: cross-entropy") == 2 and "77.0" not in longer.stdout


REFUSED: Refusals = {
    "ablate smoke --variants nonesuch": (2, "--variants nonesuch: choose from none-previous"),
    "ablate smoke --seeds 1 1": (2, "--seeds 1 1: use each seed once"),
    "ablate smoke --deletion 0": (2, "deletion is 0; it must be at least 1"),
    "ablate ablation --data.root nowhere": (1, "nowhere"),
    "ablate smoke --device tpu": (1, "tpu"),
}


def test_refused_ablation_writes_nothing(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_refusals(run_main, REFUSED, tmp_path)
