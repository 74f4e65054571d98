"""The cost of a decoder in floating-point operations."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from captioner.checkpoint import Checkpoint


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
