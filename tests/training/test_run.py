"""The folder of a run, and the model that a run starts from."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from captioner.checkpoint import load_checkpoint
from captioner.errors import ConfigError, GenerationError
from captioner.inference.device import best_dtype
from captioner.model.encoder import Encoder
from captioner.model.scores import SCORES, ScaledDotScore
from captioner_training import train as train_module
from captioner_training.data.grids import CachedGrids
from captioner_training.data.scenes import write_scenes
from captioner_training.distributed import Processes
from captioner_training.evaluation import captioning
from captioner_training.log import Log
from captioner_training.losses.objective import Objective, TeacherForcedOutput
from captioner_training.recipe import load_recipe
from captioner_training.run_folder import RunFolder, read_json, read_recipe, write_json
from captioner_training.state import Progress
from tests.conftest import read_tree
from tests.launcher import Run
from tests.refusals import Refusals, check_refusals
from tests.training.runs import link_states, newest_state, records, train_here, write_own


class Weighed(Objective):
    def loss(self, forced: TeacherForcedOutput) -> torch.Tensor:
        return self.weight * forced.cross_entropy()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and its data."""
    return write_own(tmp_path_factory.mktemp("place"), train=30, val=4)


@pytest.fixture(scope="module")
def finished(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captioning, "BATCH", 2)  # of four photos
        train_here(place / "own.yaml", place / "run", data__root=place, keep_epochs=True)
    return place / "run"


def command(place: Path, out: Path, *fields: object) -> tuple[object, ...]:
    return ("train", place / "own.yaml", "--data.root", place, "--out", out, *fields)


def files(out: Path) -> dict[str, bytes]:
    return {name: data for name, data in read_tree(out).items() if not name.endswith("lock")}


def test_a_finished_run_keeps_its_checkpoints_and_says_so(
    run_main: Run, place: Path, finished: Path
) -> None:
    before = files(finished)
    epochs = [f"epochs/{stage}.1.safetensors" for stage in (1, 2)]
    assert before.keys() == {
        "best.safetensors", "last.safetensors", "log.jsonl", "recipe.json", "finished.json", *epochs
    }  # fmt: skip
    assert before[epochs[0]] != before[epochs[1]] == before["last.safetensors"]
    assert (finished / "best.safetensors").stat().st_mode & 0o044 == 0o044  # a service can read it
    free = (
        "--data.workers", 1, "--keep_epochs", "false",
        "--save_every_minutes", 5, "--compile", "false", "--log_every", 2,
    )  # fmt: skip
    result = run_main(*command(place, finished, *free))
    assert (result.returncode, result.stdout.strip()) == (0, str(finished / "best.safetensors"))
    assert "this run is finished" in result.stderr
    after = files(finished)
    assert after.keys() == {*before, "report.html"}  # which `train` alone leaves out
    del before["finished.json"]  # to which the gain is added
    assert before.items() <= after.items()


def test_states_are_saved_after_minutes_epochs_and_stages(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each look at the clock took 25 seconds."""
    clock, saved, save = count(time.monotonic(), 25), list[int](), RunFolder.save

    def note(folder: RunFolder, state: dict[str, Any], *, digest: str) -> None:
        saved.append(state["progress"]["global_step"])
        save(folder, state, digest=digest)

    look = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("captioner_training.train.time", look)
    monkeypatch.setattr(RunFolder, "save", note)
    train_here(
        place / "own.yaml", tmp_path, data__root=place, stages__2__epochs=2, save_every_minutes=1
    )
    assert saved == [3, 6, 6, 9, 9]  # a stage; 75 seconds later; an epoch; 75 seconds; the stage
    rates = [record["learning_rate"] for record in records(tmp_path) if record["event"] == "step"]
    assert rates[3:] == sorted(rates[3:], reverse=True)  # along one cosine over both epochs
    assert (tmp_path / "finished.json").exists() and not (tmp_path / "state").exists()


def test_a_folder_with_another_run_is_refused(
    run_main: Run, place: Path, finished: Path, tmp_path: Path
) -> None:
    write_scenes(tmp_path / "data", splits={"train": 30, "val": 4}, seed=5)
    for name in ("train", "val"):  # one caption is another's, so that no word is new
        data = Path(shutil.copytree(place / "data", tmp_path / name / "data"))
        content = json.loads((data / f"captions_{name}.json").read_text())
        content["annotations"][0]["caption"] = content["annotations"][1]["caption"]
        (data / f"captions_{name}.json").write_text(json.dumps(content))
    line = shlex.join(map(str, command(place, finished)))
    refused: Refusals = {
        f"{line} --seed 2 --stages.2.epochs 5": (
            2, "(seed was 1, is 2; stages.2.epochs was 1, is 5)"
        ),
        f"{line} --stages.2.epochs 2": (2, f"start from --weights {finished}/best.safetensors"),
        f"{line} --weights {finished}/best.safetensors": (2, "best.safetensors')"),
        **{
            f"{line} --data.root {folder}": (2, "has a run on other images, captions or words")
            for folder in (tmp_path, tmp_path / "train", tmp_path / "val")
        },
    }  # fmt: skip
    before = files(finished)
    check_refusals(run_main, refused, place / "data")
    assert files(finished) == before
    recipe = read_recipe(read_json(finished / "recipe.json"))
    with pytest.raises(ConfigError, match=r"stages\.2\.\w+ was .*, is None"):
        RunFolder(replace(recipe, stages=recipe.stages[:1]), finished, default_precision="float32")


def test_a_finished_run_of_version_0_2_is_read(place: Path, finished: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    recipe = json.loads((out / "recipe.json").read_text())
    recipe |= {"save_every_steps": None, "keep_states": 2, "keep_files": False}
    del recipe["data"]["lowercase"]
    recipe["generation"]["different_around"] = recipe["generation"].pop("no_repeat_around")
    for stage in recipe["stages"]:
        stage["scheduled_sampling"] = 0.0
    write_json(out / "recipe.json", recipe)
    train_here(place / "own.yaml", out, data__root=place)
    assert (out / "log.jsonl").read_bytes() == (finished / "log.jsonl").read_bytes()
    recipe["stages"][0]["scheduled_sampling"] = 0.1
    write_json(out / "recipe.json", recipe)
    train_here(place / "own.yaml", out, data__root=place)
    (out / "finished.json").unlink()
    with pytest.raises(ConfigError, match="scheduled_sampling, which is gone"):
        train_here(place / "own.yaml", out, data__root=place)


def test_processes_begin_with_equal_weights_and_drop_out_other_units(
    place: Path, tmp_path: Path
) -> None:
    fields = {"data.root": str(place), "decoder.dropout": "0.5"}
    folder = RunFolder(
        load_recipe(str(place / "own.yaml"), fields), tmp_path, default_precision="float32"
    )
    weights, masks = [], []
    for rank in range(2):
        processes = Processes(device=torch.device("cpu"), rank=rank, world=2)
        run = train_module.Run.begin(folder, processes=processes)
        assert run is not None
        weights.append(run.state.model.decoder.embedding.weight)
        masks.append(run.state.model.decoder.dropout(torch.ones(1000)) > 0)
    assert torch.equal(*weights) and not torch.equal(*masks)


def test_a_folder_without_a_run_is_refused(run_main: Run, place: Path, tmp_path: Path) -> None:
    for name in (
        "1/best.safetensors", "2/log.jsonl", "2/state/thesis.txt", "3/finished.json",
        "4/thesis.txt", "5/recipe.json",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text('{"name": "apple pie", "stages": ["bake"]}')
    refused: Refusals = {
        shlex.join(map(str, command(place, out))): (2, "has other files, but no run to resume")
        for out in tmp_path.iterdir()
    }
    before = files(tmp_path)
    check_refusals(run_main, refused, place / "data")
    assert files(tmp_path) == before


def test_a_dry_run_in_float16_removes_only_its_own_files(
    run_main: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    out, grids = tmp_path / "out", tmp_path / "grids"
    for name in ("out/scenes", "out/tensorboard", "grids"):  # as of a run that never began
        (tmp_path / name).mkdir(parents=True)
    (out / "scenes" / "1.tar").touch()
    (out / "cache").symlink_to(grids)
    options = ("--precision", "float16", "--max-steps", 1, "--open")
    result = run_main(*command(place, out, *options))
    assert result.returncode == 0, result.stderr
    assert opened == [(out / "report.html").as_uri()]
    assert "precision: float16" in result.stderr and "scores mean nothing" in result.stderr
    assert not {"gain"} & json.loads((out / "finished.json").read_text()).keys()
    steps = [one for one in records(out) if one["event"] == "step"]
    assert [one["stage"] for one in steps] == [1, 2]  # a step of each
    assert np.isfinite([one["loss"] for one in steps]).all()
    assert len(list(grids.iterdir())) == 2 and not (out / "state").exists()


OWN = f"--stages.1.objectives '{{{__name__}:Weighed: x}}'"
TINY = "--weights tiny.safetensors"
# What follows `captioner train own.yaml`.
REFUSED: Refusals = {
    "--stages.2.fine_tune_from 13": (2, "mobilenet_v3_small has stages 0 to 12"),
    "--encoder_weights bundled": (1, "is not mobilenet_v3_small: set --encoder_weights"),
    "--encoder_weights no.st": (1, "no file no.st"),
    "--weights no.st": (1, "no file no.st"),
    "--weights data": (1, "data is not a file"),
    "--stages.1.objectives.self_critical 1": (2, "the setting 1 is invalid"),
    f"{TINY} --decoder.hidden_dim 25": (1, "hidden_dim is 25 in the recipe, 24"),
    "--weights bundled": (1, "or start without it: --weights null --encoder_weights"),
    f"{TINY} --data.tokenizer characters": (1, "data.tokenizer is"),
    "--encoder.name efficientnet_v2_b0 --encoder_weights torchvision": (
        2, "has no pretrained weights to download",
    ),
    "--encoder.stride 1 --encoder.last_stage 7": (2, "stride"),
    "--stages.1.batch_size 1 --stages.1.accumulate 2": (2, "too few for 1 processes"),
    OWN: (2, "'x' is invalid"),
    "--stages.1.objectives '{json:loads: 1}'": (2, "is not a subclass of Objective"),
    "--decoder.score nonesuch:Class": (2, "decoder.score 'nonesuch:Class' cannot be imported"),
    "--stages.1.objectives.plug.term:Focal 1": (2, "'plug.term:Focal' cannot be imported"),
    f"--decoder.score {__name__}:NoHeads": (2, "NoHeads' cannot be used (TypeError: NoHeads.__ini"),
    "--data.root nowhere": (1, "there is no folder nowhere"),
    "--data.minimum_count 1000": (1, "no word occurs 1000 times"),
    "--generation.style loud": (2, "one style of captions only"),
    "--log tensorboard": (2, "pip install 'captioner[tensorboard]'"),
    "--epochs 3": (2, "epochs: there is no such field, did you mean stages.1.epochs?"),
}  # fmt: skip


def test_mistakes_are_found_before_any_work_and_leave_nothing_behind(
    run_main: Run, place: Path, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_file.parent
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.chdir(folder)
    shutil.copy(place / "own.yaml", folder)
    (folder / "data").symlink_to(place / "data")
    refused = {f"train own.yaml {line}": wanted for line, wanted in REFUSED.items()}
    check_refusals(run_main, refused, folder)


class OwnScore(ScaledDotScore):
    """A score that only this module has: 1 for the first cell, 0 for the others."""

    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return super().compare(0 * queries, keys) + (torch.arange(keys.shape[1]) == 0)


class NoHeads(ScaledDotScore):
    """Cannot be built with `heads`."""

    def __init__(self, *, query_dim: int, key_dim: int, attention_dim: int) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, attention_dim=attention_dim)


def test_a_score_is_named_by_module_and_class(
    run_main: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{__name__}:OwnScore"
    monkeypatch.setitem(SCORES, name, OwnScore)
    del SCORES[name]  # the command registers it; the test's end removes it
    result = run_main(*command(place, tmp_path / "run", "--decoder.score", name, "--max-steps", 1))
    assert result.returncode == 0, result.stderr
    checkpoint = tmp_path / "run" / "best.safetensors"
    model = load_checkpoint(checkpoint).model
    assert model.config.decoder.score == name
    assert any(isinstance(module, OwnScore) for module in model.modules())
    attention = model.eval()(torch.randn(1, 3, 64, 64), torch.tensor([[[1, 5]]])).attention
    assert attention.shape == (1, 1, 2, 4)
    e = np.e
    assert attention[0, 0, 1].tolist() == pytest.approx([e / (e + 3), *[1 / (e + 3)] * 3])
    del SCORES[name]
    result = run_main("caption", tmp_path / "no.jpg", "--checkpoint", checkpoint)
    assert result.returncode == 1 and f"'{name}'" in result.stderr


class Half(Objective):
    """Gives a loss that nothing can be learned from."""

    def loss(self, forced: TeacherForcedOutput) -> Any:
        return 0.5


def test_a_run_that_fails_at_its_first_step_leaves_its_folder_to_another(
    run_main: Run, place: Path, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = run_main(*command(place, out, "--stages.1.objectives", f"{{{__name__}:Half: 1}}"))
    assert result.returncode == 2 and "Half: its loss is not a scalar tensor" in result.stderr
    result = run_main(*command(place, out, "--seed", 2, "--max-steps", 1))
    assert result.returncode == 0, result.stderr
    assert [one["stage"] for one in records(out) if one["event"] == "epoch"] == [1, 2]
    # Another seed has other initial weights.
    ours, theirs = (
        load_checkpoint(run / "last.safetensors").model.decoder.embedding.weight.flatten()
        for run in (out, finished)
    )
    assert torch.cosine_similarity(ours, theirs, dim=0) < 0.5


@pytest.mark.slow
def test_a_run_without_progress_keeps_its_initial_model_scored_once(
    run_main: Run, place: Path, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    still = command(
        place, out, "--weights", tiny_file, "--name", "kept", "--stages.1.learning_rate", 0,
        "--stages.2.learning_rate", 0, "--stages.2.encoder_learning_rate", 0,
        "--stages.1.epochs", 9, "--stages.2.epochs", 9, "--stages.1.patience", 1,
        "--stages.2.patience", 1, "--data.minimum_count", 99, "--transform.size", 96,
    )  # fmt: skip

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CachedGrids, "compute", stop)  # before the first step
        assert run_main(*still).returncode == 130
    begun = records(out)
    assert [one["event"] for one in begun] == ["origin"]
    scores = begun[0]["validation"]  # an epoch with the same CIDEr may have a lower cross-entropy
    kept = newest_state(out)["progress"]["best"]
    assert kept == pytest.approx((scores["CIDEr"], scores["cross_entropy"]))
    monkeypatch.setattr("captioner_training.train.Run._score_initial", stop)
    result = run_main(*still)
    assert "No epoch was better than the original model" in result.stderr
    assert records(out)[0] == begun[0]
    # Both are scored with the settings of the recipe.
    epochs = [one for one in records(out) if one["event"] == "epoch"]
    epoch = epochs[0]["validation"]
    assert epoch["words"] == scores["words"] and epoch["CIDEr"] == pytest.approx(scores["CIDEr"])
    # Patience ends a stage, and the second counts afresh.
    places = [(one["stage"], one["epoch"]) for one in epochs]
    assert places == [(1, 1), (1, 2), (2, 1), (2, 2)]
    best, last = (load_checkpoint(out / f"{name}.safetensors") for name in ("best", "last"))
    assert (best.name, last.name) == ("tiny", "kept")
    assert best.fingerprint() == load_checkpoint(tiny_file).fingerprint()
    assert best.model.config.decoder.dropout == 0.3  # the recipe's is 0.0


def test_a_signal_stops_a_validation_between_batches(
    place: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captioning, "BATCH", 2)  # of four photos
    made, run, batches = captioning.generate, tmp_path / "run", list[int]()

    def generate(*arguments: Any, **options: Any) -> Any:
        batches.append(1)
        os.kill(os.getpid(), signal.SIGTERM)
        return made(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(captioning, "generate", generate)
        train_here(place / "own.yaml", run, data__root=place)
    assert len(batches) == 1
    assert newest_state(run)["progress"]["step"] == 3  # all of the epoch
    train_here(place / "own.yaml", run, data__root=place)
    assert records(run) == records(finished)
    assert (run / "best.safetensors").read_bytes() == (finished / "best.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("batch_size", "noticed"),
    [(1, 2), (30, 1)],
    ids=["by the loss", "by the validation, which comes first"],
)
def test_a_diverged_run_says_what_to_lower(
    place: Path, tmp_path: Path, batch_size: int, noticed: int
) -> None:
    with pytest.raises(GenerationError, match=rf"infinite by step {noticed}: start again"):
        train_here(
            place / "own.yaml", tmp_path / "run", data__root=place, stages__1__warmup=0,
            stages__1__learning_rate=1e38, stages__1__batch_size=batch_size,
        )  # fmt: skip
    for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_stages_may_have_smaller_images(place: Path, tmp_path: Path) -> None:
    seen: set[tuple[bool, int]] = set()  # whether with gradients, and the side of the squares

    def look(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, Encoder):
            seen.add((torch.is_grad_enabled(), inputs[0].shape[-1]))

    with register_module_forward_pre_hook(look):
        train_here(place / "own.yaml", tmp_path, data__root=place, stages__2__size=32, max_steps=1)
    assert seen == {(True, 32), (False, 64)}  # frozen and in validation it is as large as ever
    assert load_checkpoint(tmp_path / "last.safetensors").transform.size == 64


@pytest.mark.slow
def test_tensorboard_reads_the_scalars_of_a_run(place: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_here(place / "own.yaml", tmp_path, data__root=place, tensorboard=True)
    logged = [(one["step"], one["loss"]) for one in records(tmp_path) if "loss" in one]
    read, progress = EventAccumulator(str(tmp_path / "tensorboard")), Progress(global_step=2)
    losses = [(event.step, event.value) for event in read.Reload().Scalars("loss")]
    assert losses == [(step, pytest.approx(value)) for step, value in logged]
    names = set(read.Tags()["scalars"])
    assert {"learning_rate", "validation/CIDEr", "timing/images_per_second"} <= names
    recipe, cpu = load_recipe(str(place / "own.yaml")), Processes(device=torch.device("cpu"))
    state: Any = SimpleNamespace(processes=cpu, progress=progress)
    Log(recipe, tmp_path, state=state, tensorboard=True).close()
    assert [event.step for event in read.Reload().Scalars("loss")] == [1, 2]  # resumed from there


@pytest.mark.slow
def test_a_resumed_run_keeps_its_precision(run_main: Run, place: Path, tmp_path: Path) -> None:
    """The run started in a precision that this machine would not choose, as on another machine."""
    fast = best_dtype(torch.device("cpu"))[0] is torch.bfloat16
    first, other = ("float32", "bfloat16") if fast else ("bfloat16", "float32")
    out = tmp_path / "run"
    train = command(place, link_states(out), "--max-steps", 1)
    begun = run_main(*train, "--precision", first)
    assert begun.returncode == 0, begun.stderr
    assert f"precision: {first}" in begun.stderr and "resuming after" not in begun.stderr
    (out / "finished.json").unlink()  # as if it had been killed before its last line
    then = run_main(*train)
    assert then.returncode == 0 and "resuming after step" in then.stderr, then.stderr
    assert json.loads((out / "recipe.json").read_text())["precision"] == first
    refused = run_main(*train, "--precision", other)
    assert refused.returncode == 2
    assert f"precision was '{first}', is '{other}'" in refused.stderr
