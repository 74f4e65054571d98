"""The logs of TensorBoard and Weights & Biases, read with their own readers."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from captioner_training.log import TRACKERS, Recorder
from tests.launcher import Run
from tests.training.runs import train_here, write_own

pytestmark = pytest.mark.slow


def logged(out: Path, name: str) -> list[tuple[int, float]]:
    """Return (step, value) of a scalar in log.jsonl, in its order."""
    records = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [(record["step"], record[name]) for record in records if name in record]


def leveldb_records(data: bytes, *, offset: int) -> Iterator[bytes]:
    """Read a log in LevelDB's format (log_format.md), whose first block begins with a header."""
    place, record = 0, b""
    while place + 7 <= len(data):
        left = 32768 - (place + offset) % 32768
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if left < 7 or not kind:
            place += left
            continue
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            yield record
            record = b""


@contextmanager
def both(recipe: Mapping[str, Any], *, out: Path, step: int) -> Iterator[Recorder]:
    with ExitStack() as stack:
        recorders = [
            stack.enter_context(tracker(recipe, out=out, step=step))
            for tracker in TRACKERS.values()
        ]
        yield lambda values, step: [record(values, step) for record in recorders]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that both trackers have recorded."""
    place = write_own(tmp_path_factory.mktemp("place"), train=12, val=2)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MODE": "offline", "CONSOLE": "off", "SILENT": "true"}.items():
            patch.setenv(f"WANDB_{name}", value)
        train_here(place / "own.yaml", place / "run", tracker=both, data__root=place)
    return place / "run"


def test_tensorboard_reads_the_scalars_of_a_run(out: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard")).Reload()
    read = [(event.step, event.value) for event in events.Scalars("loss")]
    assert read == [(step, pytest.approx(value)) for step, value in logged(out, "loss")]
    names = set(events.Tags()["scalars"])
    assert {"learning_rate", "validation/CIDEr", "timing/images_per_second"} <= names
    with TRACKERS["tensorboard"]({}, out=out, step=2) as record:  # resumes after step 2
        record({"loss": 7.0}, 3)
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    kept = [(step, value) for step, value in read if step <= 2]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [*kept, (3, 7.0)]


def test_wandb_reads_the_scalars_of_a_run(out: Path) -> None:
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = out.glob("wandb/offline-run-*/*.wandb")
    losses, config = {}, {}
    for data in leveldb_records(file.read_bytes()[7:], offset=7):
        record: Any = Record()  # type: ignore[no-untyped-call]
        record.ParseFromString(data)
        values = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        if "loss" in values:
            losses[record.history.step.num] = json.loads(values["loss"])
        config |= {item.key: item.value_json for item in record.run.config.update}
    assert losses == {step: pytest.approx(value) for step, value in logged(out, "loss")}
    assert json.loads(config["name"]) == "own"


def test_a_tracker_that_cannot_start_is_named(
    run_main: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoKeyError(Exception):
        pass

    def init(**_: object) -> None:
        raise NoKeyError("no API key configured")

    place = write_own(tmp_path, train=12, val=2)
    command = ("train", place / "own.yaml", "--data.root", place, "--out", place / "run")
    for module, error in (
        (SimpleNamespace(Error=NoKeyError, init=init), "failed (no API key configured)"),
        (None, "needs wandb: pip install 'captioner[wandb]'"),
    ):
        monkeypatch.setitem(sys.modules, "wandb", module)
        result = run_main(*command, "--log", "wandb")
        assert (result.returncode, result.stdout) == (2, "")
        assert f"--log wandb {error}" in result.stderr
