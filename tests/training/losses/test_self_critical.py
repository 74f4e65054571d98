"""Self-critical training: sampled captions and their rewards."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from captioner.generation.constraints import Constraints
from captioner.model.config import DecoderConfig
from captioner.model.decoder import Decoder, DecoderOutput, build_decoder
from captioner.vocabulary import END, PAD, START, UNK, Vocabulary
from captioner_training.data.batches import Batch
from captioner_training.losses.cider import CiderD
from captioner_training.losses.objective import Captions, Counts, TeacherForcedOutput
from captioner_training.losses.self_critical import (
    SelfCriticalCaptions,
    advantages,
    sample_captions,
)
from captioner_training.recipe import SelfCritical

WORDS = ["a", "red", "blue", "circle", "square", "above", "below"]


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(0)
    sizes = {"embedding_dim": 16, "hidden_dim": 24, "attention_dim": 8, "dropout": 0.0}
    decoder = build_decoder(DecoderConfig(**sizes), grid_dim=6, vocabulary_size=len(WORDS) + 4)
    torch.nn.init.normal_(decoder.embedding.weight, std=0.5)
    return decoder.eval()


def critic_of(references: list[list[tuple[str, ...]]], **config: Any) -> SelfCriticalCaptions:
    return SelfCriticalCaptions(
        SelfCritical(**config), vocabulary=Vocabulary(WORDS), references=references,
        maximum_length=5,
    )  # fmt: skip


def test_advantages_by_hand() -> None:
    rewards = torch.tensor([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]])
    # Against the mean of the other two: 1 - 4, 2 - 3.5, 6 - 1.5.
    assert advantages(rewards).tolist() == [[-3.0, -1.5, 4.5], [0, 0, 0]]


def test_the_reward_is_the_official_scorers_with_the_end_as_a_word() -> None:
    from pycocoevalcap.cider import cider_scorer as scorer

    references = [
        [("a", "red", "circle"), ("a", "circle", "above")], [("blue", "square"), ("a", "square")],
        [("red", "below", "blue")], [("square", "above", "a", "circle")],
    ]  # fmt: skip
    critic = critic_of(references)
    said = [  # of the images 2 and 0; the first of each as a person says it, the others cut
        [("red", "below", "blue", "<end>"), ("red", "below", "blue"), ("red", "below")],
        [("a", "red", "circle", "<end>"), ("a", "red", "circle"), ("a", "circle", "a", "circle")],
    ]
    numbers = {"<end>": END, **{word: 4 + number for number, word in enumerate(WORDS)}}
    tokens = torch.tensor(
        [
            [[START, *(numbers[word] for word in each), *[PAD] * (5 - len(each))] for each in image]
            for image in said
        ]
    )
    rewards = critic.rewards(tokens, torch.tensor([2, 0]))
    for k in range(3):
        theirs = scorer.CiderScorer()
        for image, each in enumerate(references):
            words = said[[2, 0].index(image)][k] if image in (2, 0) else each[0]
            theirs += (" ".join(words), [" ".join((*one, "<end>")) for one in each])
        wanted = theirs.compute_score()[1][[2, 0]]
        assert rewards[:, k].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    # That it ends as people end is worth something, and to the sole reference all there is.
    assert rewards[0, 0].item() == pytest.approx(10) and (rewards[:, 0] > rewards[:, 1]).all()


def test_rewards_are_computed_on_the_cpu_where_a_device_has_no_float64() -> None:
    references = [[("a", "circle")], [("blue", "square")]]
    cider = CiderD(references, device="mps")
    assert cider.score(references, references).shape == (2, 1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_captions_are_drawn_from_the_models_probabilities(
    decoder: Decoder, temperature: float
) -> None:
    features = torch.randn(1, 4, 6)
    logits = decoder.step(torch.tensor([[START]]), decoder.start(features)).logits[0, 0]
    logits[[PAD, START, UNK]] = -torch.inf
    expected = (logits / temperature).softmax(dim=-1)
    tokens = sample_captions(
        decoder, features, count=20_000, starts=torch.tensor([START]), temperature=temperature,
        constraints=Constraints(maximum_length=3, must_end=False),
    )  # fmt: skip
    drawn = torch.bincount(tokens[0, :, 1], minlength=len(expected)) / 20_000
    # Five standard deviations of a share are at most 5 x sqrt(1/4 / 20,000) = 0.018.
    assert (drawn - expected).abs().max() < 0.018


def test_drawn_captions_end_once_or_are_cut(decoder: Decoder) -> None:
    drawn = partial(
        sample_captions, decoder, torch.randn(3, 4, 6), starts=torch.tensor([START] * 3),
        constraints=Constraints(maximum_length=5, must_end=False),
    )  # fmt: skip
    tokens = drawn(count=50)
    assert tokens.shape[:2] == (3, 50) and (tokens[..., 0] == START).all()
    for row in tokens.flatten(0, 1).tolist():
        words = row[1 : row.index(END)] if END in row else [t for t in row[1:] if t != PAD]
        assert len(words) <= 5 and not {PAD, START, UNK, END} & set(words)
        if END in row:
            assert set(row[row.index(END) + 1 :]) <= {PAD}


def test_start_tokens_are_not_sampled_and_have_no_probability(decoder: Decoder) -> None:
    silent, features = [PAD, START, 5], torch.randn(2, 4, 6)
    decoder.output_bias.data[5] = 9.0
    tokens = sample_captions(
        decoder, features, count=50, starts=torch.tensor([5, START]),
        constraints=Constraints(maximum_length=5, never_generated=silent, must_end=False),
    )  # fmt: skip
    assert tokens[:, 0, 0].tolist() == [5, START] and not (tokens[..., 1:] == 5).any()
    vocabulary: Any = SimpleNamespace(never_generated=silent)
    critic = SelfCriticalCaptions(
        SelfCritical(), vocabulary=vocabulary, references=[[("a",)]], maximum_length=5
    )
    captions = Captions(tokens, Counts.of(tokens), torch.ones(2, 50))
    output = decoder(features, tokens[..., :-1])
    critic.loss(TeacherForcedOutput(decoder, output, captions)).backward()
    assert decoder.output_bias.grad is not None and decoder.output_bias.grad[5] == 0


def test_drawn_captions_are_policy_gradients(decoder: Decoder) -> None:
    """The slope at the logits is weight x (p - onehot) over the words that can be drawn."""
    deep = torch.randn(1, 2, 1, 16, requires_grad=True)
    targets = torch.tensor([[[5], [6]]])
    tokens = torch.cat([torch.full_like(targets, START), targets], dim=-1)
    captions = Captions(tokens, Counts.of(tokens), torch.tensor([[2.0, -0.5]]))
    reading = TeacherForcedOutput(decoder, DecoderOutput(deep), captions)
    critic_of([[("a",)]], temperature=1.0).loss(reading).backward()
    logits = decoder.logits(deep.detach())
    logits[..., [PAD, START, UNK]] = -torch.inf
    slope = logits.softmax(dim=-1) - F.one_hot(targets, len(WORDS) + 4)
    expected = captions.advantages[..., None, None] / 2 * slope @ decoder.embedding.weight
    torch.testing.assert_close(deep.grad, expected, atol=1e-6, rtol=1e-4)


def test_captions_are_drawn_in_the_style_of_their_image(decoder: Decoder) -> None:
    critic = critic_of([[("a",)]] * 3, samples=50, maximum_length=2)
    batch = Batch(torch.empty(0), torch.tensor([6, 4])[:, None, None], [2, 0])
    tokens, _, _ = critic.sample(decoder, torch.randn(2, 4, 6), batch)
    assert tokens[..., 0].tolist() == [[6] * 50, [4] * 50] and tokens.shape[-1] == 4  # with <end>


# CIDEr-D against pycocoevalcap's CiderScorer


def sentence(chance: random.Random, longest: int = 14) -> list[str]:
    return [f"w{chance.randrange(30)}" for _ in range(chance.randint(1, longest))]


def test_scores_are_pycocoevalcaps() -> None:
    from pycocoevalcap.cider import cider_scorer as scorer

    chance = random.Random(4)
    references = [[sentence(chance) for _ in range(chance.randint(1, 6))] for _ in range(700)]
    captions = []
    for each in references:
        kind = chance.randrange(4)
        caption = sentence(chance)
        if kind == 0:  # most of a reference, and words that no reference has
            caption = each[0][: chance.randint(1, 9)] + ["new", "newer"][: chance.randint(0, 2)]
        elif kind == 1:  # a word said again and again, which is clipped
            caption = [each[0][0]] * chance.randint(1, 9)
        elif kind == 2:
            caption = list(chance.choice(each))
        captions.append(caption)
    theirs = scorer.CiderScorer()
    for each, caption in zip(references, captions, strict=True):
        theirs += (" ".join(caption), [" ".join(words) for words in each])
    mean, scores = theirs.compute_score()
    ours = CiderD(references).score(references, [[caption] for caption in captions])
    np.testing.assert_allclose(ours[:, 0], scores, atol=1e-9)
    assert ours.mean() == pytest.approx(mean, abs=1e-9)
    assert 0.5 < mean < 10 and np.ptp(scores) > 5  # nothing trivial was compared


@pytest.mark.parametrize("dense", [False, True])
def test_the_cross_entropy_of_sampled_captions_is_minus_their_mean_log_probability(
    decoder: Decoder, dense: bool
) -> None:
    tokens = torch.tensor([[[START, 4, 5, END, PAD]], [[START, 6, END, PAD, PAD]]])
    features = torch.randn(2, 4, 6)
    output = decoder(features, tokens[..., :-1])
    captions = Captions(tokens, Counts.of(tokens))
    forced = TeacherForcedOutput(decoder, output, captions, dense=dense)
    logs = decoder.logits(output.deep).log_softmax(dim=-1)
    terms = [(0, 0, 4), (0, 1, 5), (0, 2, END), (1, 0, 6), (1, 1, END)]
    wanted = -sum(logs[image, 0, at, word].item() for image, at, word in terms) / 5
    assert forced.cross_entropy().item() == pytest.approx(wanted, rel=1e-5) and wanted > 0
