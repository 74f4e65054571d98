"""How often the CPU waits for the device, counted without one.

A GPU computes what it was given while the CPU queues more. Whoever reads a number back waits for
all of it, and the device then for the next operation. Here tensors "on the device" are those that
come of the model's weights or the grid; the mode follows them through every call of torch's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.generation import beam_search, sampling
from captioner.generation.beam_search import sync_interval
from captioner.generation.config import GenerationConfig
from captioner.generation.generate import generate
from captioner.model.config import DecoderConfig
from captioner.model.decoder import build_decoder
from captioner.trust.trust import digest_weights, trust_file
from captioner_training.losses import self_critical
from captioner_training.losses.attention import AttentionEntropy, DoublyStochastic
from captioner_training.losses.objective import CrossEntropy, Objective
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.recipe import SelfCritical, Stage
from tests.conftest import make_consensus, make_trust
from tests.training.runs import begin_step, make_batch

# Each makes the CPU wait until the device has the answer, or until a copy has arrived there.
_WAITS = (
    "cpu", "item", "tolist", "numpy", "nonzero", "masked_select", "unique", "new_tensor", "equal",
    "__bool__", "__int__", "__float__", "__index__", "__contains__",
)  # fmt: skip


class DeviceReads(TorchFunctionMode):
    """Counts by name what reads tensors that come of those that are `put` on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self._there = WeakIdKeyDictionary()

    def put(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self._there[tensor] = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = any(tensor in self._there for tensor in given)
        result = func(*args, **kwargs)
        name = (resolve_name(func) or getattr(func, "__name__", "")).rpartition(".")[2]
        if there and name in _WAITS:
            self.reads[name] += 1
        masks = name == "__getitem__" and any(
            isinstance(leaf, Tensor) and leaf.dtype is torch.bool for leaf in tree_leaves(args[1:])
        )
        if there and masks:
            self.reads["a mask as an index"] += 1
        if there and name == "cpu":
            return result.clone()  # on a CPU it is the same tensor
        if there:
            self.put(*(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)))
        return result


GRID = (3, 9, 24)  # images, cells, features


@pytest.mark.parametrize("kind", ["lstm", "top_down", "transformer"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_reads_the_device_every_fourth_step(
    kind: str, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in (beam_search, sampling):
        monkeypatch.setattr(room, "sync_interval", lambda _: sync_interval(torch.device("cuda")))
    torch.manual_seed(0)
    config = DecoderConfig(kind=kind, embedding_dim=16, hidden_dim=16, attention_dim=8)
    decoder = build_decoder(config, grid_dim=GRID[-1], vocabulary_size=30).eval()
    grid = torch.randn(GRID)
    search = GenerationConfig(beam_size=beam, maximum_length=15, minimum_length=15)
    with torch.inference_mode(), DeviceReads() as device:
        device.put(grid, *decoder.parameters())
        captions = generate(decoder, grid, search)
    assert [len(one.tokens) for (one, *_) in captions] == [15] * 3
    # 16 steps, and at the end the sentences in one copy.
    assert sum(device.reads.values()) <= 16 / 4 + 1, device.reads
    assert device.reads.total() >= 2  # the mode sees what there is to see


def test_captions_with_trust_are_two_more_reads(
    tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the order of the beams' sentences, one of all trust and familiarity."""
    monkeypatch.setattr(beam_search, "sync_interval", lambda _: sync_interval(torch.device("cuda")))
    make_trust(weights=digest_weights(tiny_file), consensus=make_consensus()).save(
        trust_file(tiny_file)
    )
    captioner = Captioner.from_pretrained(tiny_file, dtype="float32")
    images = [captioner.prepare(Image.new("RGB", (80, 60), name)) for name in ("red", "navy")]
    search = GenerationConfig(beam_size=3, maximum_length=15, minimum_length=15)
    with DeviceReads() as device:
        device.put(*captioner.model.parameters())
        first, _ = captioner.caption_prepared(images, search)
    assert first.trust is not None and first.familiarity is not None
    assert sum(device.reads.values()) <= 16 / 4 + 1 + 2, device.reads


CAPTIONS = [[[5, 6, 7], [4, 8]]] * 4


@pytest.mark.parametrize("kind", ["grids", "pixels", "self-critical"])
def test_a_training_step_reads_nothing(
    tiny_checkpoint: Checkpoint, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewards are computed where the captions are sampled."""

    def as_on_a_gpu(*given: Any, **options: Any) -> Any:
        return sampling.roll_out(*given, **{**options, "checks": False})

    monkeypatch.setattr(self_critical, "roll_out", as_on_a_gpu)
    images = torch.randn(4, 9, 576)
    if kind == "pixels":
        images = torch.zeros(4, 3, 96, 96, dtype=torch.uint8)
    batch = make_batch(images, CAPTIONS, starts=[1] * 4, maximum_length=5)
    objectives: list[Objective] = [CrossEntropy(), DoublyStochastic(1), AttentionEntropy(1)]
    if kind == "self-critical":
        words = tiny_checkpoint.vocabulary.words[4:10]
        critic = SelfCriticalCaptions(
            SelfCritical(samples=3), vocabulary=tiny_checkpoint.vocabulary,
            references=[[words[:3], words[2:]]] * 4, maximum_length=7,
        )  # fmt: skip
        # The first call moves the references to the device.
        critic.rewards(batch.tokens, torch.tensor(batch.positions))
        objectives = [critic]
    stage = Stage(epochs=1, batch_size=4, fine_tune_from=0 if kind == "pixels" else None)
    step = begin_step(tiny_checkpoint, stage, *objectives)
    step.loss.dense = True  # the operators for a GPU
    with DeviceReads() as device:
        device.put(batch.images, batch.tokens, *tiny_checkpoint.model.parameters())
        for _ in range(2):
            values = step([batch])
            step.stage.count_step(values)
        assert not device.reads
        assert math.isfinite(float(values["loss"]))  # as a log reads it
    assert device.reads == {"__float__": 1}
