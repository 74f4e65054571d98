"""What becomes of a run's folder: dry runs, finished runs, more epochs, Ctrl-C, a model at hand."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from captioner.bundled import bundled_checkpoint
from captioner.checkpoint import load_checkpoint
from captioner_training.data.scenes import write_scenes
from tests.launcher import start
from tests.training.runs import newest_state, older, records

Run = Callable[..., subprocess.CompletedProcess[str]]

RECIPE = """
name: own
encoder_weights: random
encoder: {name: mobilenet_v3_small, stride: 32}
transform: {mode: squash, size: 64}
decoder: {embedding_dim: 16, hidden_dim: 24, attention_dim: 8, dropout: 0.0}
data: {train: [data], validation: [data], minimum_count: 1, workers: 0}
generation: {beam_size: 1}
stages:
  - {epochs: 1, batch_size: 10, warmup: 2}
  - {epochs: 1, batch_size: 10, fine_tune_from: 5, warmup: 2}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, its data, and what its run made."""
    place = tmp_path_factory.mktemp("place")
    write_scenes(place / "data", splits={"train": 30, "val": 4})
    (place / "own.yaml").write_text(RECIPE)
    return place


def command(place: Path, out: str, *fields: object) -> tuple[object, ...]:
    return ("train", place / "own.yaml", "--data.root", place, "--out", place / out, *fields)


@pytest.fixture(scope="module")
def finished(place: Path) -> Path:
    """A dry run through every stage, and then the real one in the same folder."""
    for fields in (("--max-steps", 1), ()):
        process = start(*command(place, "run", *fields))
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        steps = [one for one in records(place / "run") if one["event"] == "step"]
        per_stage = 1 if fields else 3
        assert [one["stage"] for one in steps] == [1] * per_stage + [2] * per_stage
        assert [one["step"] for one in steps] == list(range(1, 2 * per_stage + 1))
    return place / "run"


def test_a_finished_run_keeps_its_checkpoints_and_its_log(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "best.safetensors", "last.safetensors", "log.jsonl", "recipe.json", "finished.json", "lock"
    }  # fmt: skip
    assert (finished / "best.safetensors").stat().st_mode & 0o044 == 0o044  # a service can read it


def test_a_finished_run_of_other_data_is_not_handed_out(
    run_captioner: Run, place: Path, finished: Path, tmp_path: Path
) -> None:
    write_scenes(tmp_path / "data", splits={"train": 30, "val": 4}, seed=5)
    other = run_captioner("train", place / "own.yaml", "--data.root", tmp_path, "--out", finished)
    assert (other.returncode, other.stdout) == (2, "")
    assert "has a finished run on other images or captions" in other.stderr
    same = run_captioner(*command(place, "run"))
    assert (same.returncode, same.stdout.strip()) == (0, str(finished / "best.safetensors"))
    gone = Path(shutil.copytree(finished, tmp_path / "gone"))
    (gone / "best.safetensors").unlink()
    result = run_captioner("train", place / "own.yaml", "--data.root", place, "--out", gone)
    assert result.returncode == 2 and "best.safetensors is gone: put it back" in result.stderr
    shutil.copy(bundled_checkpoint(), gone / "best.safetensors")
    result = run_captioner("train", place / "own.yaml", "--data.root", place, "--out", gone)
    assert result.returncode == 2 and "is not the checkpoint of the run" in result.stderr


def test_a_finished_run_goes_on_with_more_epochs(
    run_captioner: Run, place: Path, finished: Path
) -> None:
    shutil.copytree(finished, place / "longer")
    note = json.loads((place / "longer" / "finished.json").read_text())
    older(note["recipe"])
    (place / "longer" / "finished.json").write_text(json.dumps(note))
    before = records(place / "longer")
    result = run_captioner(*command(place, "longer", "--stages.2.epochs", 2), timeout=300)
    assert result.returncode == 0, result.stderr
    assert re.search(r"\(stage [12], epoch 1\) with more epochs, after epoch 1: ", result.stderr)
    after = records(place / "longer")
    assert after[: len(before)] == before
    (epoch,) = [one for one in after[len(before) :] if one["event"] == "epoch"]
    assert (epoch["stage"], epoch["epoch"], epoch["step"]) == (2, 2, 9)


def test_ctrl_c_saves_a_state_and_says_so(place: Path) -> None:
    process = start(*command(place, "stopped", "--stages.1.epochs", 50, "--log-every", 1))
    log = place / "stopped" / "log.jsonl"
    while process.poll() is None and not (log.exists() and '"step": 4' in log.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in errors, errors
    step = newest_state(place / "stopped")["progress"]["total"]
    assert f"stopped after step {step:,}: the same command goes on" in errors


def test_words_of_the_model_are_kept_and_it_is_compared_with(
    run_captioner: Run, place: Path, finished: Path, tiny_file: Path
) -> None:
    rate = ("--stages.1.learning_rate", 2e-2, "--stages.1.epochs", 12)
    fields = ("--weights", tiny_file, *rate, "--name", "kept")
    result = run_captioner(*command(place, "kept", *fields), timeout=300)
    assert result.returncode == 0, result.stderr
    theirs = load_checkpoint(tiny_file).vocabulary.words
    ours = load_checkpoint(place / "kept" / "best.safetensors").vocabulary.words
    assert ours[: len(theirs)] == theirs and "circle" in ours[len(theirs) :]
    origin = records(place / "kept")[0]
    assert origin["event"] == "origin"
    assert f"before the training {origin['validation']['CIDEr']:.1f}: the run g" in result.stderr
    # What nothing is learned from is no better than the model was: that one is handed out.
    rates = ("--stages.1.learning_rate", 0, "--stages.2.learning_rate", 0)
    still = (
        *rates,
        "--stages.1.epochs",
        1,
        "--stages.2.encoder_learning_rate",
        0,
        "--data.minimum_count",
        99,
    )
    result = run_captioner(*command(place, "still", *fields, *still), timeout=300)
    assert "no epoch was better than the model as it was (CIDEr " in result.stderr
    best, last = (place / "still" / f"{name}.safetensors" for name in ("best", "last"))
    assert load_checkpoint(best).name == "tiny" and load_checkpoint(last).name == "kept"
    assert load_checkpoint(best).fingerprint() == load_checkpoint(tiny_file).fingerprint()
    assert load_checkpoint(best).model.config.decoder.dropout == 0.3  # the recipe's is 0.0
    again = run_captioner(*command(place, "still", *fields, *still))
    assert (again.returncode, again.stdout.strip()) == (0, str(best)), again.stderr
    other = run_captioner(*command(place, "none", *fields, "--decoder.hidden_dim", 25))
    assert other.returncode == 1
    assert "decoder.hidden_dim is 25 here and 24 there" in other.stderr


def test_mistakes_of_the_encoder_are_found_before_any_work(run_captioner: Run, place: Path) -> None:
    result = run_captioner(*command(place, "no", "--stages.2.fine_tune_from", 40))
    assert result.returncode == 2 and not (place / "no").exists()
    assert "stages.2.fine_tune_from 40: the encoder has the stages 0 to" in result.stderr
    result = run_captioner(*command(place, "no", "--encoder_weights", "bundled"))
    assert result.returncode == 2 and "efficientnet_v2_b0: set" in result.stderr
    assert result.stderr.count("\n") < 3


def test_boxes_of_a_later_stage_are_looked_at_first(run_captioner: Run, place: Path) -> None:
    boxes = place / "broken.json"
    boxes.write_text(json.dumps({"annotations": []}))
    asked = ("--data.boxes", f"[{boxes}]", "--stages.2.attention_supervision", 0.3)
    result = run_captioner(*command(place, "told", *asked))
    assert result.returncode == 1 and "it has no list images" in result.stderr
    assert not (place / "told" / "log.jsonl").exists()


def test_evaluate_looks_at_everything_first(
    run_captioner: Run, place: Path, finished: Path, tmp_path: Path
) -> None:
    best = ("--checkpoint", finished / "best.safetensors")
    boxes = tmp_path / "captions.json"
    boxes.write_text(json.dumps({"annotations": []}))
    for option, path, message in (
        ("--boxes", boxes, "it has no list images"),
        ("--boxes", tmp_path / "none.json", "there is no file"),
        ("--predictions", tmp_path / "no" / "where.jsonl", "there is no folder"),
    ):
        result = run_captioner("evaluate", place / "data", *best, option, path)
        assert (result.returncode, result.stdout) == (1, "")
        assert message in result.stderr
    # The captions of scenes speak of no people: that part alone fails.
    content = json.loads((place / "data" / "boxes_val.json").read_text())
    content["categories"] = [{**one, "name": "person"} for one in content["categories"]]
    boxes.write_text(json.dumps(content))
    result = run_captioner(
        "evaluate", place / "data", *best, "--boxes", boxes,
        "--predictions", tmp_path / "out.jsonl", "--json",
    )  # fmt: skip
    report = json.loads(result.stdout)
    assert result.returncode == 1 and report["person_boxes"]["error"]["type"] == "data-error"
    assert "CIDEr" in report["nltk"] and report["dtype"] in ("float32", "bfloat16")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4
