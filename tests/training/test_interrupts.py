"""Signals between the last step of an epoch and the first of the next one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from captioner_training.distributed import Processes
from captioner_training.evaluation import split
from captioner_training.recipe_file import load_recipe
from captioner_training.reporting.clock import Clock
from captioner_training.train import train
from tests.training.runs import newest_state, records

CPU = Processes(device=torch.device("cpu"))
RECIPE = """
name: miniature
encoder_weights: random
encoder: {name: mobilenet_v3_small, stride: 32}
transform: {mode: squash, size: 32}
decoder: {embedding_dim: 8, hidden_dim: 12, attention_dim: 4}
data: {scenes: {train: 20, validation: 15}, minimum_count: 1, workers: 0}
generation: {beam_size: 1}
keep_files: true
stages:
  - {epochs: 2, batch_size: 10, warmup: 2}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run the recipe in this process, three batches a validation."""
    monkeypatch.setattr(split, "BATCH", 5)
    path = tmp_path / "miniature.yaml"
    path.write_text(RECIPE)

    def begin(name: str) -> None:
        train(load_recipe(str(path)), out=tmp_path / name, processes=CPU)

    return begin


@pytest.mark.parametrize("late", [False, True], ids=["in validation", "after the last step"])
def test_a_signal_is_heard_between_the_batches_of_a_validation(
    run: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    batches = []

    def generate(*arguments: Any, **options: Any) -> Any:
        batches.append(1)
        if not late and len(batches) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return made(*arguments, **options)

    def stop(clock: Clock) -> None:
        stopped(clock)
        if late and not batches:
            os.kill(os.getpid(), signal.SIGTERM)

    made, stopped = split.generate, Clock.stop
    with monkeypatch.context() as patch:
        patch.setattr(split, "generate", generate)
        patch.setattr(Clock, "stop", stop)
        with pytest.raises(KeyboardInterrupt):
            run("stopped")
    assert len(batches) == (1 if late else 2)
    assert newest_state(tmp_path / "stopped")["progress"]["step"] == 2  # all of the epoch
    run("stopped")
    run("unbroken")
    assert records(tmp_path / "stopped") == records(tmp_path / "unbroken")
    best = [(tmp_path / name / "best.safetensors").read_bytes() for name in ("stopped", "unbroken")]
    assert best[0] == best[1]
