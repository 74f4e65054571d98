"""What the actors of a cluster are given, and what they make of it: without a cluster."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from captioner import Captioner
from captioner_serving.batch import caption_batch
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.run import BatchRun


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
        self.rows = pickle.loads(pickle.dumps(actor({"photo": self.rows})["done"]))
        actor._engine.close()
        return self

    def iter_batches(self, **_: Any) -> Iterator[dict[str, Any]]:
        yield {"done": self.rows}


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
    photos: Callable[..., Path],
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
