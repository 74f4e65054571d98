"""The number of operators of a training step, which a GPU waits for, and their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from captioner.checkpoint import Checkpoint
from captioner.model import CaptionModel
from captioner_training.losses.cross_entropy import CrossEntropy
from captioner_training.losses.objective import Objective
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.recipe import SelfCritical, Stage
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


def test_a_step_calls_no_more_operators_than_measured(tiny_checkpoint: Checkpoint) -> None:
    """Most are the decoder's, 109 a word with those of backward; 349 are once a step."""
    short, long = (operators(tiny_checkpoint, CrossEntropy(), words=count) for count in (8, 16))
    assert long - short <= 8 * 109
    assert short <= 8 * 109 + 349
    decoder = replace(tiny_checkpoint.model.config.decoder, kind="top_down")
    config = replace(tiny_checkpoint.model.config, decoder=decoder)
    model = CaptionModel(config, vocabulary_size=len(tiny_checkpoint.vocabulary))
    top_down = replace(tiny_checkpoint, model=model)
    short, long = (operators(top_down, CrossEntropy(), words=count) for count in (8, 16))
    assert long - short <= 8 * 155
    words = tiny_checkpoint.vocabulary.words[4:10]
    critic = SelfCriticalCaptions(
        SelfCritical(samples=3), vocabulary=tiny_checkpoint.vocabulary,
        references=[[words[:3], words[2:]]] * 4, maximum_length=8,
    )  # fmt: skip
    assert operators(tiny_checkpoint, critic, words=8) <= 2606


def test_fine_tuning_calls_no_more_operators_than_measured(tiny_checkpoint: Checkpoint) -> None:
    """The encoder's are 635; copies of the inputs of activations would be 18 more."""
    assert operators(tiny_checkpoint, CrossEntropy(), words=8, fine_tune=True) <= 1856


def test_a_few_words_cost_less_than_the_values_of_a_grid(tiny_checkpoint: Checkpoint) -> None:
    """A matrix after attention is applied to contexts or to values, whichever are fewer."""
    decoder = tiny_checkpoint.model.decoder
    features = torch.randn(2, 49, 576)

    def flops(words: int, captions: int = 1) -> int:
        with FlopCounterMode(display=False) as counted:
            decoder(features, torch.full((2, captions, words), 5))
        return counted.get_total_flops()

    matrix = torch.cat([decoder.context_gates.weight, decoder.deep_context.weight])
    folded = 2 * 2 * 49 * matrix.numel()  # operations of 49 values for each of two images
    word = flops(2) - flops(1)
    assert flops(2) < folded  # two words are not folded
    assert flops(100) < 100 * word  # a hundred are
    assert flops(48) > flops(49) and flops(12, captions=4) > flops(13, captions=4)
