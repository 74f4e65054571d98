"""When calls are captured. That graphs give the same results was seen on a GPU."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.inference import cuda_graphs
from captioner.inference.cuda_graphs import CudaGraphs
from captioner.inference.decoders import PackedLinear, can_pack


class FakeGraph:
    """Counts launches, and returns what the function returned when it was captured."""

    launches = finished = 0

    def __init__(self, function: Any, inputs: Any) -> None:
        self.result = function(*inputs)

    def launch(self, inputs: Any) -> Any:
        FakeGraph.launches += 1
        return ("launched", self.result, inputs[0].value)

    def finish(self) -> None:
        FakeGraph.finished += 1


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A GPU of 100 bytes, all of them free."""
    memory = SimpleNamespace(free=100, cached=0)
    monkeypatch.setattr(cuda_graphs, "_Graph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (memory.free, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: memory.cached + 10)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 10)
    monkeypatch.setattr(FakeGraph, "launches", 0)
    monkeypatch.setattr(FakeGraph, "finished", 0)
    yield memory


def on_gpu(value: int, *shape: int) -> Any:
    return SimpleNamespace(
        is_cuda=True, shape=shape or (1,), dtype=torch.float32, device="cuda:0", value=value
    )


def double(tensor: Any) -> Any:
    return 2 * tensor.value


def test_the_second_call_with_a_key_and_a_shape_is_captured() -> None:
    graphs = CudaGraphs()
    assert graphs("a", double, on_gpu(3)) == 6
    assert graphs("b", double, on_gpu(3)) == 6
    assert graphs("a", double, on_gpu(3, 2)) == 6
    assert graphs("a", double, on_gpu(4)) == ("launched", 8, 4)
    assert graphs("a", double, on_gpu(5)) == ("launched", 8, 5)
    assert graphs("b", double, on_gpu(5)) == ("launched", 10, 5)
    assert FakeGraph.launches == 3
    for value in range(3):  # on a CPU
        assert graphs("a", torch.neg, torch.tensor(value)).item() == -value
    graphs.clear()
    assert FakeGraph.finished == 2  # their memory is not freed while they run
    assert graphs("a", double, on_gpu(1)) == 2
    assert graphs("a", double, on_gpu(1)) == ("launched", 2, 1)


def test_each_thread_runs_the_function_before_it_captures() -> None:
    """The first call of a thread makes handles of libraries, which no capture may do."""
    graphs, results = CudaGraphs(), []
    assert graphs("a", double, on_gpu(1)) == 2
    thread = threading.Thread(
        target=lambda: results.extend(graphs("a", double, on_gpu(1)) for _ in range(2))
    )
    thread.start()
    thread.join()
    assert results == [2, ("launched", 2, 1)]
    assert graphs("a", double, on_gpu(7)) == ("launched", 2, 7)  # a graph is for all threads


def test_a_function_that_cannot_be_captured_runs_as_it_is_after_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = RuntimeError("operation not permitted when stream is capturing\nlong text")
    monkeypatch.setattr(cuda_graphs, "_Graph", Mock(side_effect=error))
    graphs = CudaGraphs()
    assert graphs("a", double, on_gpu(1)) == 2
    with pytest.warns(UserWarning, match=r"CUDA graph capture failed \(operation not perm.*ing\)"):
        assert graphs("a", double, on_gpu(1)) == 2
    monkeypatch.setattr(cuda_graphs, "_Graph", FakeGraph)
    assert graphs("a", double, on_gpu(1)) == 2


def test_graphs_leave_a_quarter_of_the_memory_free(gpu: SimpleNamespace) -> None:
    """torch's cache counts as free, unless it may belong to a graph, also of another captioner."""
    graphs, others = CudaGraphs(), CudaGraphs()
    gpu.free = 24
    for _ in range(3):
        assert graphs("a", double, on_gpu(1)) == 2
    gpu.cached = 1
    assert graphs("a", double, on_gpu(1)) == ("launched", 2, 1)
    for _ in range(2):
        assert graphs("b", double, on_gpu(1)) == others("a", double, on_gpu(1)) == 2
    graphs.clear()
    assert others("a", double, on_gpu(1)) == ("launched", 2, 1)


def test_the_least_recently_used_graph_of_sixteen_is_dropped() -> None:
    graphs = CudaGraphs()
    for key in range(16):
        for _ in range(2):
            graphs(key, double, on_gpu(key))
    assert graphs(0, double, on_gpu(7)) == ("launched", 0, 7)
    for expected in (32, ("launched", 32, 16)):
        assert graphs(16, double, on_gpu(16)) == expected
    assert FakeGraph.finished == 1
    assert graphs(0, double, on_gpu(7)) == ("launched", 0, 7)  # used later than 1
    assert graphs(1, double, on_gpu(7)) == 14
    assert graphs(1, double, on_gpu(7)) == ("launched", 14, 7)


def test_requests_that_differ_only_after_the_search_share_a_graph(
    tiny_checkpoint: Checkpoint,
) -> None:
    keys: list[Any] = []

    def graphs(key: Any, search: Any, *inputs: Any) -> Any:
        keys.append(key)
        return search(*inputs)

    decoder, grid = tiny_checkpoint.model.decoder, OnGPU(torch.randn(1, 9, 576))
    changes: list[dict[str, Any]] = [
        {}, {"seed": 3}, {"consensus": False}, {"top_k": 5}, {"temperature": 0.5},
        {"beam_size": 4}, {"captions": 2}, {"length_penalty": 0.0}, {"minimum_length": 3},
        {"maximum_length": 8}, {"no_repeat_ngram": 0}, {"no_repeat_around": "or"},
    ]  # fmt: skip
    for change in changes:
        config = GenerationConfig(beam_size=3, maximum_length=5).changed(**change)
        generate(decoder, grid, config, graphs=graphs)
    assert len(set(keys[:5])) == 1
    assert len(set(keys)) == 8


class OnGPU(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    @property
    def is_cuda(self) -> bool:
        return True


def test_a_captioner_is_copied_and_pickled_without_its_graphs(
    tiny_checkpoint: Checkpoint, photo: Path
) -> None:
    tiny = Captioner(tiny_checkpoint, dtype="float32")
    assert any(isinstance(part, PackedLinear) for part in tiny.model.modules()) == can_pack()
    for _ in range(2):
        tiny.graphs("a", double, on_gpu(1))
    for other in (copy.deepcopy(tiny), pickle.loads(pickle.dumps(tiny))):
        assert other.graphs("a", double, on_gpu(1)) == 2
        assert other.fingerprint == tiny.fingerprint
        assert other.caption(photo) == tiny.caption(photo)
