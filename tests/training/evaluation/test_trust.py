"""Which words are right, how trust in them is learned, and how well it does: numbers by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from captioner.errors import DataError
from captioner.generation.beam_search import Hypothesis
from captioner.trust.trust import Judgement
from captioner.vocabulary import Vocabulary
from captioner_training.data.images import Captioned, CaptionedImage, ImageStore
from captioner_training.evaluation.bootstrap import ranking_table
from captioner_training.evaluation.fit_trust import fit_logistic, fit_trust, fit_word_features
from captioner_training.evaluation.measure_trust import measure_marks, measure_trust
from captioner_training.evaluation.words import count_nouns, right_words
from tests.conftest import make_trust

NOWHERE = ImageStore.from_members((), pattern=Path("nowhere"), identity="none")


def image(*references: str, id: int | str = 1, name: str = "a.jpg") -> CaptionedImage:
    words = tuple(tuple(text.split()) for text in references)
    return CaptionedImage(name=name, id=id, store=NOWHERE, captions=references, words=words)


def captioned(
    text: str,
    *references: str,
    probability: float = 0.5,
    attention: Tensor | None = None,
    effects: Sequence[float] | None = None,
    id: int = 7,
) -> Captioned:
    words = text.split()
    logs = torch.full((len(words) + 1,), probability).log()
    return Captioned(
        image=image(*references, id=id),
        hypothesis=Hypothesis([4] * len(words), float(logs.mean()), logs),
        words=words,
        attention=attention,
        effects=effects,
    )


@pytest.mark.parametrize(
    ("caption", "right"),
    [
        ("a dog jumps", [None, True, True]),  # stems: dogs, jumping
        ("two puppies leap", [False, True, True]),  # COCO's category; a synonym
        ("a man with a child", [None, False, None, None, True]),  # a boy is a child, and no man
        ("people on the lawn", [True, None, None, True]),
        ("a hot dog", [None, False, True]),  # names another category, but its word is there
        ("group of dogs next to cats", [None, None, True, None, None, False]),  # without a claim
    ],
)
def test_a_word_is_right_where_a_reference_has_it_or_a_synonym(
    caption: str, right: list[bool | None]
) -> None:
    references = [["dogs", "jumping", "over", "grass"], ["a", "boy", "watches"]]
    assert right_words(caption.split(), references) == right


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    # Right: 0.9, 0.5, 0.4. Wrong: 0.5, 0.1. Of six pairs four are in order, one is a tie.
    scores, right = [0.9, 0.5, 0.4, 0.5, 0.1], [1, 1, 1, 0, 0]
    table = ranking_table(scores, right, [0, 1, 1, 0, 1], images=2)
    assert table.value() == pytest.approx(4.5 / 6)
    assert np.isnan(ranking_table([0.5], [1], [0], images=1).value())
    chance = np.random.default_rng(0)
    many, true = chance.normal(size=2000), chance.random(2000) < 0.5
    exact = (many[true][:, None] > many[~true]).mean()
    rough = ranking_table(many, true, np.arange(2000) % 7, images=7).value()
    assert rough == pytest.approx(exact, abs=1e-3)


def test_logistic_regression_finds_the_log_odds_of_two_groups() -> None:
    # 300 of 400 are right where the clue is 1, 100 of 400 where it is 3: log odds log 3 and -log 3.
    clues = np.repeat([1.0, 3.0], 400)[:, None]
    right = [at < 300 or 400 <= at < 500 for at in range(800)]
    constant, slope = fit_logistic(clues, right)
    assert constant + slope == pytest.approx(np.log(3), abs=0.02)
    assert constant + 3 * slope == pytest.approx(-np.log(3), abs=0.02)
    constant, slope = fit_logistic(np.ones((50, 1)), [True] * 50)
    assert 2 < constant + slope < 10  # nothing was wrong, and yet it may be
    # The mean trust of 100 words, of which 97 are right, is near 0.97.
    clues = np.random.default_rng(0).normal(size=(100, 1))
    constant, slope = fit_logistic(clues, [at >= 3 for at in range(100)])
    assert (1 / (1 + np.exp(-constant - slope * clues))).mean() == pytest.approx(0.97, abs=1e-3)


def test_word_features_learn_words_from_the_mean_of_a_grid() -> None:
    """People say "dog" or "puppy" where the first number is 1, and "red" of every other photo."""
    vocabulary = Vocabulary(words := ["a", "dog", "dogs", "puppy", "red", "ball"])
    there = np.arange(400) % 4 == 0
    images = [
        image("a puppy runs" if at % 8 else "a dog", "two dogs" if at % 2 else "a dog")
        if dog
        else image("a red car", "a car")
        for at, dog in enumerate(there.tolist())
    ]
    noise = np.random.default_rng(0).normal(size=400)
    means = np.stack([there, noise, np.ones(400)], axis=1).astype(np.float32)
    word_features = fit_word_features(means, images, vocabulary)
    kinds = dict(zip(words, word_features.kinds[-6:].tolist(), strict=True))
    assert kinds["a"] == -1 and kinds["dog"] == kinds["dogs"] and len({*kinds.values()}) == 4 + 1
    shown, other = word_features(np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))
    # Every second of these photos has it in both references, the others in one.
    assert shown[kinds["dog"]] == pytest.approx(0.75, abs=0.1)
    assert other[kinds["dog"]] == pytest.approx(0, abs=0.1)
    assert other[kinds["red"]] == pytest.approx(0.5, abs=0.1) and shown[kinds["red"]] < 0.1
    # Nobody says "ball": it is among the rare ones, of which no photo says anything.
    assert shown[kinds["ball"]] == other[kinds["ball"]] == word_features.shares[-1]


def test_mean_trust_is_the_share_that_is_right() -> None:
    """The mean prediction of a logistic regression is the share of its outcomes."""
    known, split = make_trust(grid_dim=2), []
    for number in range(300):
        # Likely words are right, unlikely ones wrong; the others have a right and a wrong one.
        probability, reference = ((0.9, "the dog runs"), (0.1, "snow"), (0.5, "the dog"))[
            number % 3
        ]
        said = captioned("the dog runs", reference, probability=probability)
        said.hypothesis.tokens[0] = 3  # makes no claim
        split.append(said)
    pooled = np.zeros((300, 3), np.float32)
    fit = partial(
        fit_trust, word_features=known.word_features, familiarity=known.familiarity, weights="",
        consensus=None,
    )  # fmt: skip
    with pytest.raises(DataError, match="have 6 content words"):
        fit(split[1:4], pooled[:3])
    trust = fit(split, pooled)
    judged = [best for (best,) in trust.assess(pooled, [[one.hypothesis] for one in split])[0]]
    trusts = np.array([one.words[1:] for one in judged], float)
    assert trusts[::3].min() > 0.9 and trusts[1::3].max() < 0.1
    assert trusts.mean() == pytest.approx(0.5, abs=0.01)
    captions = np.array([one.caption for one in judged], float)
    assert captions[::3].min() > max(captions[1::3].max(), captions[2::3].max())
    assert captions.mean() == pytest.approx(1 / 3, abs=0.01)


def test_trust_is_compared_with_right_words() -> None:
    split = [
        captioned("a dog runs", "a dog runs", "a dog"),
        captioned("a cat runs", "a dog runs", "a cow stands", probability=0.8),
    ]
    judged = [Judgement([None, 0.9, 0.8], 0.7), Judgement([None, 0.3, 0.6], 0.2)]
    found = measure_trust(split, judged)
    words, captions = found["words"], found["captions"]
    assert isinstance(words, dict) and isinstance(captions, dict)
    assert words["count"] == 4 and words["right"] == 75
    assert words["auroc"] == 1 and words["auroc_probability"] == pytest.approx(1 / 6)
    # Bins of one word each but that of 0.8 and 0.9: off by 0.1, 0.2, 0.3 and 0.4.
    assert words["error"] == pytest.approx(25)
    assert captions["right"] == 50 and captions["auroc"] == 1 and captions["auroc_score"] == 0


def test_marks_are_compared_with_wrong_words_by_hand() -> None:
    """Doubtful is a trust below 0.55, of the subject below 0.75."""
    split = [
        captioned("a lion runs", "a cat runs"),  # subject wrong and marked
        captioned("a lion runs", "a cat runs"),  # subject wrong, "runs" marked
        captioned("a dog runs", "a dog runs"),  # right, not marked
        captioned("a dog runs", "a dog runs"),  # right, both marked
    ]
    judged = [
        Judgement([None, 0.7, 0.6], 0.5, subject=1),
        Judgement([None, 0.8, 0.5], 0.5, subject=1),
        Judgement([None, 0.8, 0.6], 0.5, subject=1),
        Judgement([None, 0.5, 0.5], 0.5, subject=1),
    ]
    marks = measure_marks(split, judged)
    assert marks["wrong"] == pytest.approx(25) and marks["flawed"] == marks["right"] == 50
    assert marks["per_right"] == 1


def test_nouns_follow_determiners_and_stand_before_function_words() -> None:
    captions = [
        "a brown dog runs through the snow",
        "a dog in the snow",
        "two men are sitting next to a red bench",
        "the men ride a red bike",
        "a group of men behind a bench and a bike",
    ]
    nouns = count_nouns(caption.split() for caption in captions)
    assert nouns == {"dog", "snow", "men", "bench", "bike"}
