"""Batch captioning on a Ray cluster of this machine: actors that are killed, photos that crash."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from captioner import Captioner, CaptionerError
from captioner.errors import MissingExtraError
from captioner_serving.batch import caption_batch
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.run import BatchRun
from tests.conftest import make_trust
from tests.launcher import PATH, environment
from tests.process_tree import family
from tests.serving.batch.conftest import Photos, await_records, draw, read_lines
from tests.serving.batch.test_sources import make_tar

# Every interpreter reads this first. It stands for a hole in a decoder: photos of this size bring
# it down. Those of the other size wait for a file.
DECODER_WITH_A_HOLE = """
import os, signal, time
from PIL import ImageFile

sound = ImageFile.ImageFile.load

def load(self):
    if self.size == (61, 41):
        os.kill(os.getpid(), signal.SIGSEGV)
    while self.size == (62, 41) and not os.path.exists("KILLED"):
        time.sleep(0.01)
    return sound(self)

ImageFile.ImageFile.load = load
"""


def kill_actor(pid: int) -> bool:
    """Kill an actor of a cluster; return whether there was one."""
    for member in family(pid):
        with suppress(OSError):
            if b"CaptionActor" in Path(f"/proc/{member}/cmdline").read_bytes():
                os.kill(member, signal.SIGKILL)
                return True
    return False


@pytest.mark.slow
def test_actors_that_are_killed_and_photos_that_crash_cost_nothing_else(
    lively_file: Path, photos: Photos, tiny: Captioner, tmp_path: Path
) -> None:
    """One photo brings its decoding process down each time."""
    folder, output = photos(200), tmp_path / "c.jsonl"
    (folder / "p050.jpg").write_bytes(b"")
    (folder / "p100.jpg").unlink()
    draw(150, size=(62, 41)).save(folder / "p150.jpg")
    wanted = list(caption_batch(folder, captioner=tiny))
    draw(100, size=(61, 41)).save(folder / "p100.jpg")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(
        DECODER_WITH_A_HOLE.replace("KILLED", str(tmp_path / "killed"))
    )
    options = ("--ray", "local", "--batch-size", "4", "--dtype", "float32", "--quiet")
    command = (sys.executable, "-m", "captioner", "batch", folder, "--output", output, *options)
    path = os.pathsep.join((str(tmp_path / "path"), PATH))
    variables = environment(PYTHONWARNINGS="ignore", PYTHONPATH=path)  # Ray warns of itself
    variables["RAY_OVERRIDE_RESOURCES"] = '{"CPU": 1}'  # one actor
    with subprocess.Popen(
        [*map(str, command), "--checkpoint", str(lively_file)],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=variables,
    ) as process:  # fmt: skip
        try:
            await_records(process, output)
            assert kill_actor(process.pid) and len(output.read_bytes().splitlines()) < 198
            (tmp_path / "killed").touch()
            _, said = process.communicate()
        finally:
            for member in reversed(list(family(process.pid))):
                if member != process.pid or process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.kill(member, signal.SIGKILL)
    assert process.returncode == 1 and "Traceback" not in said, said
    assert [(record["image"], record["caption"]) for record in read_lines(output)] == [
        (record["image"], record["caption"]) for record in wanted if "caption" in record
    ]
    empty, crash = read_lines(Path(f"{output}.errors.jsonl"))
    assert (empty["image"], empty["error"]["type"]) == (str(folder / "p050.jpg"), "image-empty")
    assert crash["image"] == str(folder / "p100.jpg")
    assert "crashed the image decoder (status -11)" in crash["error"]["detail"]
    # The journal is the same with and without Ray: nothing is left to do.
    assert not list(caption_batch(folder, output=output, captioner=tiny))


# Arguments and results of the actors, without a cluster


class RayTaskError(Exception):
    cause: BaseException


class RayActorError(Exception): ...


class Cluster:
    """Stands for Ray and its data set: each actor gets a copy of its arguments, as on a node."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.options: dict[str, Any] = {}  # of all calls
        self.windows: list[list[Any]] = []  # photos that were submitted together
        options = SimpleNamespace(preserve_order=False)
        self.context = SimpleNamespace(execution_options=options, enable_progress_bars=True)
        self.during: tuple[bool, bool] | None = None  # the context while photos are captioned
        self.failure: BaseException | None = None  # raised instead of returning results
        self.shift = 0  # the results are this many places off
        ray, data = ModuleType("ray"), ModuleType("ray.data")
        errors = SimpleNamespace(RayTaskError=RayTaskError, RayActorError=RayActorError)
        ray.__dict__.update(
            data=data,
            init=lambda address, **options: self.options.update(options, address=address),
            cluster_resources=lambda: {"GPU": 1.0, "CPU": 3.0},
            exceptions=errors,
        )
        data.__dict__.update(
            DataContext=SimpleNamespace(get_current=lambda: self.context),
            from_items=self.from_items,
        )
        patch.setitem(sys.modules, "ray", ray)
        patch.setitem(sys.modules, "ray.data", data)

    def from_items(self, items: list[dict[str, Any]], **options: Any) -> Cluster:
        self.windows.append([item["photo"] for item in items])
        options_now = self.context.execution_options
        self.during = self.context.enable_progress_bars, options_now.preserve_order
        self.options |= options
        return self

    def map_batches(
        self,
        kind: Callable[..., Any],
        *,
        fn_constructor_args: tuple[Any, ...],
        fn_constructor_kwargs: dict[str, Any],
        **options: Any,
    ) -> Cluster:
        self.options |= options
        given = pickle.loads(pickle.dumps((fn_constructor_args, fn_constructor_kwargs)))
        self.options["share"] = given[1]["share"]
        actor = kind(*given[0], **given[1])
        self.rows = pickle.loads(pickle.dumps(actor({"photo": self.windows[-1]})["outcomes"]))
        actor._engine.close()
        return self

    def iter_batches(self, *, batch_size: int, batch_format: str) -> Iterator[dict[str, Any]]:
        if self.failure is not None:
            raise self.failure
        rows = self.rows[self.shift :] + self.rows[: self.shift]
        for start in range(0, len(rows), batch_size):
            yield {"outcomes": rows[start : start + batch_size]}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster with one GPU and three CPUs."""
    monkeypatch.delenv("RAY_BACKEND_LOG_LEVEL", raising=False)
    return Cluster(monkeypatch)


def run_on(cluster: Cluster, captioner: Captioner, *sources: object, **options: Any) -> list[Any]:
    inputs, config = Inputs(sources=tuple(map(str, sources))), BatchConfig(**options)
    with BatchRun(inputs, output=None, config=config, load=lambda: captioner, ray="local") as run:
        return list(run.records())


@pytest.mark.parametrize(
    ("options", "found", "gpus"),
    [({}, "auto", 1), ({"device": "cpu", "dtype": "float32"}, "cpu", None)],
)
def test_settings_trust_and_photos_reach_the_actors_which_look_for_a_device_where_they_are(
    photos: Photos, lively_file: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str], found: str, gpus: int | None,
) -> None:  # fmt: skip
    """The process that was started may have no GPU, and the actors' nodes have.

    Photos are submitted in windows.
    """
    monkeypatch.setattr("captioner_serving.batch.cluster._WINDOW", 1)
    folder = photos(2)
    monkeypatch.chdir(folder.parent)
    sources = folder.name, make_tar(Path("a.tar"), folder)
    captioner = Captioner.from_pretrained(lively_file, **options)
    captioner.use_trust(make_trust())
    asked: dict[str, Any] = {"beam_size": 3, "captions": 2, "keywords": 0.0, "batch_size": 1}
    wanted = list(caption_batch(sources, config=BatchConfig(**asked), captioner=captioner))
    made: list[tuple[object, object]] = []
    before = Captioner.__init__

    def noted(self: Captioner, *arguments: Any, **given: Any) -> None:
        made.append((given["device"], given["dtype"]))
        before(self, *arguments, **{**given, "device": "cpu"})

    monkeypatch.setattr(Captioner, "__init__", noted)
    assert run_on(cluster, captioner, *sources, **asked) == wanted
    assert all(record["trust"] and len(record["alternatives"]) == 1 for record in wanted)
    ((device, dtype),) = set(made)
    assert device == found and options.get("dtype") in (None, dtype)
    assert [len(window) for window in cluster.windows] == ([1] * 4 if gpus else [3, 1])
    sent = [photo for window in cluster.windows for photo in window]
    places = {photo.path or photo.archive for photo in sent}
    assert places == {f"{folder.parent}/a.tar", *map(str, folder.iterdir())}
    # Each actor has a GPU and the CPUs, or one CPU.
    share = 3 if gpus else 1
    expected = {"concurrency": 1 if gpus else 3, "num_gpus": gpus, "num_cpus": share}
    assert {**expected, "share": share}.items() <= cluster.options.items()
    assert cluster.during == (False, True)
    context = cluster.context  # the settings of Ray are as before the run
    assert (context.enable_progress_bars, context.execution_options.preserve_order) == (True, False)
    assert "RAY_BACKEND_LOG_LEVEL" not in os.environ


def failed(cause: BaseException) -> BaseException:
    """Wrap an exception of an actor as Ray does."""
    error, task = RuntimeError("of Ray Data"), RayTaskError()
    task.cause = cause
    error.__cause__ = task
    return error


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (failed(CaptionerError("memory is short")), "^memory is short$"),
        (failed(RayActorError()), "an actor of the Ray cluster ended repeatedly"),
        (failed(ValueError("odd")), "ValueError: odd"),
        (None, "no result for .*/p000.jpg: run the same command"),
    ],
)
def test_a_failure_of_the_cluster_is_a_sentence(
    photos: Photos, tiny: Captioner, cluster: Cluster, failure: BaseException | None, said: str
) -> None:
    """So are results of other photos."""
    cluster.failure, cluster.shift = failure, 1
    with pytest.raises(CaptionerError, match=said):
        run_on(cluster, tiny, photos(2))


def test_ray_is_an_extra(photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is checked before the model is loaded and the output is created."""
    monkeypatch.setitem(sys.modules, "ray", None)
    inputs, output = Inputs(sources=(str(photos(1)),)), tmp_path / "c.jsonl"
    with pytest.raises(MissingExtraError, match=r"--ray .*captioner\[cluster\]"):
        BatchRun(inputs, output=str(output), config=BatchConfig(), load=pytest.fail, ray="local")
    assert not list(tmp_path.glob("c.*"))
