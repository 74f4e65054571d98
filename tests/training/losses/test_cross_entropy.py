"""Cross-entropy and the terms on the attention, against torch and numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import Decoder, DecoderOutput, build_decoder
from captioner.vocabulary import PAD
from captioner_training.losses.attention import AttentionEntropy, DoublyStochastic
from captioner_training.losses.cross_entropy import CrossEntropy
from captioner_training.losses.objective import Captions, Counts, Objective, Reading, count


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    config = DecoderConfig(embedding_dim=6, hidden_dim=5)
    return build_decoder(config, grid_dim=4, vocabulary_size=9)


def output(attention: torch.Tensor) -> DecoderOutput:
    generator = torch.Generator().manual_seed(1)
    shape = attention.shape[:3]
    return DecoderOutput(torch.randn(*shape, 6, generator=generator), attention, torch.ones(shape))


def loss(
    decoder: Decoder, made: DecoderOutput, targets: torch.Tensor, *objectives: Objective,
    counts: Counts | None = None,
) -> torch.Tensor:  # fmt: skip
    reading = Reading(decoder, made, Captions(targets, targets), counts=counts)
    return torch.stack([objective.loss(reading) for objective in objectives]).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs_without_padding(decoder: Decoder, smoothing: float) -> None:
    targets = torch.tensor([[[5, 6, 2], [4, 2, PAD]]])
    made = output(torch.full((1, 2, 3, 4), 0.25))
    slopes, values = [], []
    for own in (True, False):
        deep = made.deep.clone().requires_grad_()
        if own:
            objective = CrossEntropy(label_smoothing=smoothing)
            value = loss(decoder, made._replace(deep=deep), targets, objective)
        else:
            logits = decoder.logits(deep).flatten(0, 2)
            value = F.cross_entropy(
                logits, targets.flatten(), ignore_index=PAD, label_smoothing=smoothing
            )
        value.backward()
        assert deep.grad is not None
        slopes.append(deep.grad)
        values.append(value.item())
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    torch.testing.assert_close(slopes[0], slopes[1], atol=1e-7, rtol=1e-5)
    assert [int(number) for number in count(targets)] == [5, 2]  # tokens and captions


def test_doubly_stochastic_attention_by_hand(decoder: Decoder) -> None:
    # Two cells, two words. Caption 0 looks at cell 0 twice: sums 2 and 0, (1-2)^2 + (1-0)^2 = 2,
    # over two cells 1. Caption 1 has one word: sums 0.5 and 0.5, 0.25 + 0.25, over two cells 0.25.
    # Mean over captions 0.625. Caption 2 is padding and counts for nothing.
    attention = torch.tensor([[[[1.0, 0], [1, 0]], [[0.5, 0.5], [9, 9]], [[9, 9], [9, 9]]]])
    targets = torch.tensor([[[4, 2], [2, PAD], [PAD, PAD]]])
    value = loss(decoder, output(attention), targets, DoublyStochastic(2.0))
    assert value.item() == pytest.approx(2 * 0.625, abs=1e-5)


def test_attention_entropy_by_hand(decoder: Decoder) -> None:
    # One word looks at one cell (entropy 0), one at both alike (log 2); padding does not count.
    attention = torch.tensor([[[[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]]], requires_grad=True)
    targets = torch.tensor([[[4, 2, PAD]]])
    value = loss(decoder, output(attention), targets, AttentionEntropy(3.0))
    assert value.item() == pytest.approx(3 * math.log(2) / 2, abs=1e-5)
    value.backward()
    assert attention.grad is not None and attention.grad.isfinite().all()  # also where it is 0


def test_nothing_is_asked_of_an_attention_that_is_not_there(decoder: Decoder) -> None:
    made = output(torch.full((1, 2, 3, 4), 0.25))._replace(attention=None)
    targets = torch.tensor([[[5, 6, 2], [4, 2, PAD]]])
    assert loss(decoder, made, targets, DoublyStochastic(1), AttentionEntropy(1)).item() == 0
