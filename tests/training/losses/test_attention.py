"""Attention losses, worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from captioner.model.config import DecoderConfig
from captioner.model.decoder import DecoderOutput, build_decoder
from captioner.vocabulary import END, PAD, START
from captioner_training.losses.attention import AttentionEntropy, DoublyStochastic
from captioner_training.losses.objective import Captions, Counts, TeacherForcedOutput


@pytest.mark.parametrize("dense", [False, True])
def test_attention_losses_apply_to_each_head(dense: bool) -> None:
    # Word 1: two heads, each sharp, on different cells: no entropy, though their mean has log 2.
    # Word 2: one head sharp, one even over two of the three cells: log 2 / 2 on average.
    # Word 3 is padding. The image has another caption, without words, which does not count.
    first, second = [[1.0, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 0.5, 0.5]]
    heads = torch.tensor([[[first, second, [[9.0, 9, 9]] * 2]] * 2])
    made = DecoderOutput(torch.randn(1, 2, 3, 6), heads.mean(-2), None, heads)
    decoder = build_decoder(DecoderConfig(embedding_dim=6), grid_dim=4, vocabulary_size=9)
    tokens = torch.tensor([[[START, 4, END, PAD], [START, PAD, PAD, PAD]]])
    reading = TeacherForcedOutput(decoder, made, Captions(tokens, Counts.of(tokens)), dense=dense)
    entropy = AttentionEntropy(3.0).loss(reading)
    assert entropy.item() == pytest.approx(3 * (0 + math.log(2) / 2) / 2, abs=1e-5)
    # Head 1 sums to 2, 0, 0 over the words: (1-2)^2 + 1 + 1 = 3; head 2 to 0, 1.5, 0.5: 1 + .25 +
    # .25 = 1.5; over three cells and two heads 4.5 / 6.
    stochastic = DoublyStochastic(2.0).loss(reading)
    assert stochastic.item() == pytest.approx(2 * 4.5 / 6, abs=1e-5)
