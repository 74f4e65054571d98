"""Count the operators of a training step, which a GPU waits for.

    python -m tests.benchmarks.operators

The counts at the last change of the step, in float32: 1,221 for 8 words, 109 for each more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from captioner.checkpoint import Checkpoint
from captioner.model.model import CaptionModel
from captioner_training.losses.cross_entropy import CrossEntropy
from captioner_training.losses.objective import Objective
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.recipe import SelfCritical, Stage
from tests.conftest import make_tiny
from tests.test_device_reads import dense_step
from tests.training.runs import make_batch


class Operators(TorchDispatchMode):
    """Counts the operators of ATen."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators(
    checkpoint: Checkpoint, *objectives: Objective, words: int, fine_tune: bool = False
) -> int:
    """Count the operators of the second step over 4 images with 2 captions of `words` words."""
    captions = [[[5] * words, [6] * words]] * 4
    pixels = torch.randint(256, (4, 3, 64, 64), dtype=torch.uint8)
    images = pixels if fine_tune else torch.randn(4, 9, 576)
    batch = make_batch(images, captions, starts=[1] * 4, maximum_length=words)
    stage = Stage(epochs=1, batch_size=4, fine_tune_from=0 if fine_tune else None)
    step = dense_step(checkpoint, stage, *objectives)
    step([batch])
    with Operators() as operators:
        step([batch])
    return operators.count


def main() -> None:
    """Print the counts for both decoders, for fine-tuning and for self-critical training."""
    tiny = make_tiny()
    decoder = replace(tiny.model.config.decoder, kind="top_down")
    config = replace(tiny.model.config, decoder=decoder)
    top_down = replace(tiny, model=CaptionModel(config, vocabulary_size=len(tiny.vocabulary)))
    for name, checkpoint in (("lstm", tiny), ("top_down", top_down)):
        short, long = (operators(checkpoint, CrossEntropy(), words=count) for count in (8, 16))
        print(f"{name}: {short} for 8 words, {(long - short) / 8:.0f} for each more")
    print(f"fine-tuning: {operators(tiny, CrossEntropy(), words=8, fine_tune=True)}")
    words = tiny.vocabulary.words[4:10]
    critic = SelfCriticalCaptions(
        SelfCritical(samples=3), vocabulary=tiny.vocabulary,
        references=[[words[:3], words[2:]]] * 4, maximum_length=8,
    )  # fmt: skip
    print(f"self-critical: {operators(tiny, critic, words=8)}")


if __name__ == "__main__":
    main()
