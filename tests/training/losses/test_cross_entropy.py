"""The loss against torch's cross-entropy and numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from captioner.decoders.config import DecoderConfig
from captioner.decoders.decoder import Decoder, DecoderOutput, build_decoder
from captioner.vocabulary import PAD
from captioner_training.losses.cross_entropy import LossTerms, caption_loss, count
from captioner_training.optimizer import warmup_cosine


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    config = DecoderConfig(embedding_dim=6, hidden_dim=5)
    return build_decoder(config, grid_dim=4, vocabulary_size=9)


def output(attention: torch.Tensor) -> DecoderOutput:
    generator = torch.Generator().manual_seed(1)
    shape = attention.shape[:3]
    return DecoderOutput(torch.randn(*shape, 6, generator=generator), attention, torch.ones(shape))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs_without_padding(decoder: Decoder, smoothing: float) -> None:
    targets = torch.tensor([[[5, 6, 2], [4, 2, PAD]]])
    made = output(torch.full((1, 2, 3, 4), 0.25))
    loss = caption_loss(decoder, made, targets, LossTerms(label_smoothing=smoothing))
    expected = F.cross_entropy(
        decoder.logits(made.deep).flatten(0, 2),
        targets.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
    )
    assert loss.total.item() == pytest.approx(expected.item(), abs=1e-6)
    assert [int(number) for number in count(targets)] == [5, 2]  # tokens and captions


def test_doubly_stochastic_attention_by_hand(decoder: Decoder) -> None:
    # Two cells, two words. Caption 0 looks at cell 0 twice: sums 2 and 0, (1-2)^2 + (1-0)^2 = 2,
    # over two cells 1. Caption 1 has one word: sums 0.5 and 0.5, 0.25 + 0.25, over two cells 0.25.
    # Mean over captions 0.625. Caption 2 is padding and counts for nothing.
    attention = torch.tensor([[[[1.0, 0], [1, 0]], [[0.5, 0.5], [9, 9]], [[9, 9], [9, 9]]]])
    targets = torch.tensor([[[4, 2], [2, PAD], [PAD, PAD]]])
    plain = caption_loss(decoder, output(attention), targets, LossTerms())
    with_it = caption_loss(decoder, output(attention), targets, LossTerms(doubly_stochastic=2.0))
    assert (with_it.total - plain.total).item() == pytest.approx(2 * 0.625, abs=1e-5)


def test_attention_entropy_by_hand(decoder: Decoder) -> None:
    # One word looks at one cell (entropy 0), one at both alike (log 2); padding does not count.
    attention = torch.tensor([[[[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]]], requires_grad=True)
    targets = torch.tensor([[[4, 2, PAD]]])
    plain = caption_loss(decoder, output(attention), targets, LossTerms())
    with_it = caption_loss(decoder, output(attention), targets, LossTerms(attention_entropy=3.0))
    assert (with_it.total - plain.total).item() == pytest.approx(3 * math.log(2) / 2, abs=1e-5)
    with_it.total.backward()
    assert attention.grad is not None and attention.grad.isfinite().all()  # also where it is 0


def test_schedule() -> None:
    rates = [warmup_cosine(step, steps=110, warmup=10, floor=0.0) for step in range(111)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[60] == pytest.approx(0.5)  # half of the cosine
    assert rates[110] == pytest.approx(0.0)


def test_losses_of_parts_add_up_to_the_loss_of_the_batch(decoder: Decoder) -> None:
    generator = torch.Generator().manual_seed(2)
    attention = torch.rand(4, 2, 3, 5, generator=generator).softmax(dim=-1)
    made = DecoderOutput(torch.randn(4, 2, 3, 6, generator=generator), attention, attention[..., 0])
    targets = torch.randint(4, 9, (4, 2, 3), generator=generator)
    targets[0, 1], targets[2, 0, 2] = PAD, PAD  # parts of different sizes
    settings = LossTerms(label_smoothing=0.1, doubly_stochastic=0.5, attention_entropy=0.3)
    whole = caption_loss(decoder, made, targets, settings)
    parts = [
        caption_loss(
            decoder, DecoderOutput(*(tensor[part] for tensor in made)), targets[part],
            settings, counts=count(targets),
        )
        for part in (slice(0, 1), slice(1, 4))
    ]  # fmt: skip
    assert sum(part.total.item() for part in parts) == pytest.approx(whole.total.item(), abs=1e-6)
    nothing = caption_loss(  # the share of a process may be padding alone
        decoder, DecoderOutput(*(tensor[:1] for tensor in made)), torch.full((1, 2, 3), PAD),
        settings, counts=count(targets),
    )  # fmt: skip
    assert nothing.total.item() == 0


def test_weighted_captions_are_policy_gradients(decoder: Decoder) -> None:
    """The slope at the logits is weight x (p - onehot) over the words that can be drawn."""
    made = output(torch.full((1, 2, 1, 4), 0.25))
    deep = made.deep.requires_grad_()
    targets = torch.tensor([[[5], [6]]])
    weights = torch.tensor([[2.0, -0.5]])
    loss = caption_loss(
        decoder, made._replace(deep=deep), targets,
        LossTerms(label_smoothing=0.1), weights=weights,
    )  # fmt: skip
    loss.total.backward()
    logits = decoder.logits(deep.detach())
    logits[..., [0, 1, 3]] = -torch.inf  # <pad>, <start> and <unk> are never drawn
    slope = logits.softmax(dim=-1) - F.one_hot(targets, 9)
    expected = weights[..., None, None] / 2 * slope @ decoder.embedding.weight
    torch.testing.assert_close(deep.grad, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_slope_of_the_cross_entropy_is_torchs(decoder: Decoder, smoothing: float) -> None:
    made = output(torch.full((1, 2, 3, 4), 0.25))
    targets = torch.tensor([[[5, 6, 2], [4, 2, PAD]]])
    slopes = []
    for own in (True, False):
        deep = made.deep.clone().requires_grad_()
        if own:
            terms = LossTerms(label_smoothing=smoothing)
            caption_loss(decoder, made._replace(deep=deep), targets, terms).total.backward()
        else:
            F.cross_entropy(
                decoder.logits(deep).flatten(0, 2), targets.flatten(),
                ignore_index=PAD, label_smoothing=smoothing,
            ).backward()  # fmt: skip
        assert deep.grad is not None
        slopes.append(deep.grad)
    torch.testing.assert_close(slopes[0], slopes[1], atol=1e-7, rtol=1e-5)
