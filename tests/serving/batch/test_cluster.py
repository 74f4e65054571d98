"""Batch captioning on a Ray cluster of this machine: actors that are killed, photos that crash."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from captioner import Captioner
from captioner_serving.batch import caption_batch
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.run import BatchRun
from tests.launcher import PATH
from tests.process_tree import family
from tests.serving.batch.conftest import Photos, Start, draw

# Every interpreter reads this first. It stands for a hole in a decoder: photos of this size bring
# it down.
DECODER_WITH_A_HOLE = """
import os, signal
from PIL import ImageFile

sound = ImageFile.ImageFile.load

def load(self):
    if self.size == (61, 41):
        os.kill(os.getpid(), signal.SIGSEGV)
    return sound(self)

ImageFile.ImageFile.load = load
"""


def actors(pid: int, name: bytes) -> list[int]:
    """The processes of one kind of actor, by the name that Ray gives them."""
    found = []
    for member in family(pid):
        with suppress(OSError):
            if name in Path(f"/proc/{member}/cmdline").read_bytes():
                found.append(member)
    return found


@contextmanager
def running(start_batch: Start, *arguments: object, path: str = "") -> Iterator[Any]:
    """Start the command on a new cluster, which is removed afterwards."""
    # Ray warns of itself.
    environment = {
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join(filter(None, (path, PATH))),
    }
    more = ("--ray", "local", "--batch-size", 4)
    process = start_batch(*arguments, *more, environment=environment)
    try:
        yield process
    finally:
        for member in reversed(list(family(process.pid))):
            if member != process.pid or process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
        process.communicate()


def await_records(process: subprocess.Popen[str], output: Path) -> None:
    deadline = time.monotonic() + 300
    while not (output.exists() and output.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_actors_that_are_killed_and_photos_that_crash_cost_nothing_else(
    start_batch: Start, photos: Photos, tiny: Captioner, tmp_path: Path
) -> None:
    """An actor is killed, and one photo brings its decoding process down each time."""
    folder = photos(400)
    (folder / "p100.jpg").write_bytes(b"")
    (folder / "p200.jpg").unlink()
    wanted = list(caption_batch(folder, captioner=tiny))
    draw(200, size=(61, 41)).save(folder / "p200.jpg")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(DECODER_WITH_A_HOLE)
    output = tmp_path / "captions.jsonl"
    path = str(tmp_path / "path")
    with running(start_batch, folder, "--output", output, path=path) as process:
        await_records(process, output)
        victim = actors(process.pid, b"CaptionActor")[0]
        assert len(output.read_bytes().splitlines()) < 398
        os.kill(victim, signal.SIGKILL)
        _, said = process.communicate(timeout=300)
    assert (process.returncode, "Traceback" in said) == (1, False), said
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(record["image"], record["caption"]) for record in records] == [
        (record["image"], record["caption"]) for record in wanted if "caption" in record
    ]
    empty, crash = map(json.loads, Path(f"{output}.errors.jsonl").read_text().splitlines())
    assert (empty["image"], empty["error"]["type"]) == (str(folder / "p100.jpg"), "image-empty")
    assert crash["image"] == str(folder / "p200.jpg")
    assert "crashed the image decoder (status -11)" in crash["error"]["detail"]
    # The journal is the same with and without Ray: nothing is left to do.
    assert not list(caption_batch(folder, output=output, captioner=tiny))


@pytest.mark.slow
def test_an_actor_that_always_ends_ends_the_run_with_a_sentence(
    start_batch: Start, photos: Photos, tmp_path: Path
) -> None:
    output = tmp_path / "captions.jsonl"
    with running(start_batch, photos(400), "--output", output) as process:
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            for victim in actors(process.pid, b"CaptionActor"):
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            time.sleep(0.2)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 1, said
    assert "an actor of the Ray cluster ended repeatedly" in said
    assert "Traceback" not in said


# What the actors of a cluster are given, and what they make of it: without a cluster


class Dataset:
    """Stands for Ray's: each actor gets a copy of its arguments, as on another node."""

    def __init__(self, rows: list[Any], reserved: list[Any]) -> None:
        self.rows, self.reserved = rows, reserved

    def map_batches(
        self,
        kind: Callable[..., Any],
        *,
        fn_constructor_args: tuple[Any, ...],
        fn_constructor_kwargs: dict[str, Any],
        **options: Any,
    ) -> Dataset:
        self.reserved.append(options.get("num_gpus"))
        given = pickle.loads(pickle.dumps((fn_constructor_args, fn_constructor_kwargs)))
        actor = kind(*given[0], **given[1])
        self.rows = pickle.loads(pickle.dumps(actor({"photo": self.rows})["outcomes"]))
        actor._engine.close()
        return self

    def iter_batches(self, **_: Any) -> Iterator[dict[str, Any]]:
        yield {"outcomes": self.rows}


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put a cluster with one GPU in Ray's place; the GPUs that each kind of actor reserves."""
    reserved: list[Any] = []
    context = SimpleNamespace(execution_options=SimpleNamespace())
    ray, data = ModuleType("ray"), ModuleType("ray.data")
    ray.__dict__.update(
        data=data, init=lambda *_, **__: None, cluster_resources=lambda: {"GPU": 1.0, "CPU": 1.0}
    )
    data.__dict__.update(
        DataContext=SimpleNamespace(get_current=lambda: context),
        from_items=lambda items, **_: Dataset([one["photo"] for one in items], reserved),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", data)
    return reserved


@pytest.mark.parametrize(
    ("options", "found", "gpus"),
    [({}, ["auto"], 1), ({"device": "cpu", "dtype": "float32"}, ["cpu"], None)],
)
def test_an_actor_looks_for_a_device_where_it_is_unless_one_is_named(
    photos: Photos,
    lively_file: Path,
    reserved: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    found: list[str],
    gpus: int | None,
) -> None:
    """The process that was started may have no GPU, and the actors' nodes have."""
    folder = photos(3)
    captioner = Captioner.from_pretrained(lively_file, **options)
    wanted = list(caption_batch(folder, captioner=captioner))
    made: list[tuple[object, object]] = []
    before = Captioner.__init__

    def noted(self: Captioner, *arguments: Any, **given: Any) -> None:
        made.append((given["device"], given["dtype"]))
        before(self, *arguments, **{**given, "device": "cpu"})

    monkeypatch.setattr(Captioner, "__init__", noted)
    inputs, config = Inputs(sources=(str(folder),)), BatchConfig()
    with BatchRun(inputs, output=None, config=config, load=lambda: captioner, ray="local") as run:
        records = list(run.records())
    assert [device for device, _ in made] == found and reserved == [gpus]
    assert options.get("dtype") in (None, made[0][1])
    texts = [(record["image"], record["caption"]) for record in records]
    assert texts == [(record["image"], record["caption"]) for record in wanted]
