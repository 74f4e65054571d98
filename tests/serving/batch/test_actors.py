"""What the actors of a cluster are given, and what they make of it: without a cluster."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from captioner import Captioner, predictor
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


def caption_on_ray(folder: Path, captioner: Captioner) -> list[dict[str, Any]]:
    inputs = Inputs(sources=(str(folder),))
    with BatchRun(
        inputs, output=None, config=BatchConfig(), captioner=captioner, ray="local"
    ) as run:
        return list(run.records())


def test_an_actor_looks_for_a_device_where_it_is(
    photos: Callable[..., Path],
    lively_file: Path,
    reserved: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process that was started may have no GPU, and the actors' nodes have."""
    folder = photos(3)
    captioner = Captioner.from_pretrained(lively_file)
    wanted = list(caption_batch(folder, captioner=captioner))
    looked_for: list[object] = []

    def elsewhere(name: object) -> torch.device:
        looked_for.append(name)
        return torch.device("cpu")

    monkeypatch.setattr(predictor, "find_device", elsewhere)
    records = caption_on_ray(folder, captioner)
    assert looked_for == ["auto"]
    assert reserved == [1]
    told = [(record["image"], record["caption"]) for record in records]
    assert told == [(record["image"], record["caption"]) for record in wanted]


def test_an_asked_device_and_dtype_stay_and_a_cpu_reserves_no_gpu(
    photos: Callable[..., Path],
    lively_file: Path,
    reserved: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captioner = Captioner.from_pretrained(lively_file, device="cpu", dtype="float32")
    made: list[tuple[object, object]] = []
    before = Captioner.__init__

    def noted(self: Captioner, *arguments: Any, **options: Any) -> None:
        made.append((options["device"], options["dtype"]))
        before(self, *arguments, **options)

    monkeypatch.setattr(Captioner, "__init__", noted)
    assert len(caption_on_ray(photos(2), captioner)) == 2
    assert made == [("cpu", "float32")]
    assert reserved == [None]
