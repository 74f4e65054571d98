"""The logs of TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from captioner_training.log import TRACKERS
from tests.launcher import Run
from tests.training.runs import train_here, write_own

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return write_own(tmp_path, train=12, val=2)


def logged(out: Path, name: str) -> list[tuple[int, float]]:
    """Return (step, value) of a scalar in log.jsonl, in its order."""
    records = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [(record["step"], record[name]) for record in records if name in record]


def test_tensorboard_reads_the_scalars_of_a_run(place: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out, tracker = place / "run", TRACKERS["tensorboard"]
    train_here(place / "own.yaml", out, tracker=tracker, data__root=place)
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    read = [(event.step, event.value) for event in events.Scalars("loss")]
    assert read == [(step, pytest.approx(value)) for step, value in logged(out, "loss")]
    names = set(events.Tags()["scalars"])
    assert {"learning_rate", "validation/CIDEr", "timing/images_per_second"} <= names
    with tracker({}, out=out, step=2) as record:  # resumes after step 2
        record({"loss": 7.0}, 3)
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    kept = [(step, value) for step, value in read if step <= 2]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [*kept, (3, 7.0)]


def test_wandb_gets_the_scalars_of_a_run_and_continues_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, losses, ends = list[Any](), list[tuple[int, float]](), list[bool]()

    def log(values: dict[str, float], step: int) -> None:
        losses.extend([(step, values["loss"])] if "loss" in values else [])

    def init(**options: Any) -> Any:
        starts.append((options["id"], options["resume"], options["config"]["name"]))
        return SimpleNamespace(id="7", log=log, finish=lambda: ends.append(True))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Error=OSError, init=init))
    out, tracker = place / "run", TRACKERS["wandb"]
    train_here(place / "own.yaml", out, tracker=tracker, data__root=place)
    with tracker({"name": "own"}, out=out, step=2):
        pass
    assert losses == logged(out, "loss")
    assert starts == [(None, None, "own"), ("7", "allow", "own")] and ends == [True, True]


def test_a_tracker_that_cannot_start_is_named(
    run_main: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoKeyError(Exception):
        pass

    def init(**_: object) -> None:
        raise NoKeyError("no API key configured")

    command = ("train", place / "own.yaml", "--data.root", place, "--out", place / "run")
    for module, error in (
        (SimpleNamespace(Error=NoKeyError, init=init), "failed (no API key configured)"),
        (None, "needs wandb: pip install 'captioner[wandb]'"),
    ):
        monkeypatch.setitem(sys.modules, "wandb", module)
        result = run_main(*command, "--log", "wandb")
        assert (result.returncode, result.stdout) == (2, "")
        assert f"--log wandb {error}" in result.stderr
