"""Fitting consensus, compared with pycocoevalcap's scorer and with least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from captioner.trust.consensus import Consensus
from captioner.vocabulary import Vocabulary
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.fit_trust import Ridge, fit_consensus
from tests.training.evaluation.test_trust import image

WORDS = Vocabulary(["a", "dog", "cat", "runs", "sits", "on", "grass", "the", "sofa", "red"])


def learn(pooled: np.ndarray, photos: list[list[str]]) -> Consensus:
    images: list[CaptionedImage] = [image(*references) for references in photos]
    known = fit_consensus(pooled.astype(np.float32), images, WORDS)
    assert known is not None
    return known


def expect(known: Consensus, offset: list[float], sentence: str) -> float:
    tokens = WORDS.encode(sentence.split())
    (expected,) = known.expect(np.array(offset, np.float32), [tokens])
    return expected


def test_for_equal_photos_expected_cider_is_the_mean_cider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of one length with no word twice: for such CIDEr-D, the scorer's, is CIDEr."""
    from pycocoevalcap.cider import cider_scorer

    counted = cider_scorer.precook  # the scorer's own n does not reach it
    monkeypatch.setattr(cider_scorer, "precook", lambda text, *_: counted(text, 2))
    said = ["a dog runs on grass", "the cat sits on sofa", "a red dog sits on", "red cat runs on a"]
    # Each n-gram is in five photos or more, so that none is too rare to be learned.
    photos = [[said[at % 4], said[at // 2 % 3]] for at in range(30)]
    known = learn(np.zeros((30, 4)), photos)
    for sentence in (*said, "the cat runs on grass", "a dog sits on sofa"):
        scorer = cider_scorer.CiderScorer(n=2)
        for references in photos:
            scorer += (sentence, references)
        mean = scorer.compute_score()[0] / 10
        assert expect(known, [0, 0, 0], sentence) == pytest.approx(mean, abs=1e-6)


def test_expected_cider_depends_on_the_photo() -> None:
    """The first feature is 1 where there is a dog and -1 for a cat; the others mean nothing."""
    chance = np.random.default_rng(0)
    animals = chance.choice([1, -1], 400)
    pooled = np.concatenate([animals[:, None], chance.normal(size=(400, 3))], axis=1)
    photos = [["a dog runs", "the dog runs"] if one > 0 else ["a cat sits"] for one in animals]
    known = learn(pooled, photos)
    for animal, other in (("dog runs", "cat sits"), ("cat sits", "dog runs")):
        seen = [1.0 if "dog" in animal else -1.0, 0.0, 0.0] - known.feature_mean
        assert expect(known, seen, f"a {animal}") > 2 * expect(known, seen, f"a {other}")


def test_rare_and_unknown_words_count_in_the_norm_of_a_sentence() -> None:
    """Half of the photos have "dog" and half "cat meows", of which the second word is <unk>."""
    chance = np.random.default_rng(0)
    pooled = chance.normal(size=(20, 4)).astype(np.float32)
    known = learn(pooled, [["dog"], ["cat meows"]] * 10)
    assert known.grams.tolist() == [[5, -1], [6, -1]]  # dog, cat; "cat meows" is no known pair
    assert known.idf == pytest.approx([math.log(2)] * 2)
    # "meows" weighs as much as "cat", so that half of the squared length is its.
    means = np.array([[1, 0], [0, 1 / math.sqrt(2)]] * 10, np.float32)
    wanted = Ridge.fit(pooled, means, [1] * 20, alpha=0.3)
    assert known.mean_references == pytest.approx([0.5, 0.5 / math.sqrt(2)])
    off = known.coefficients * known.scales[:, None] - wanted.coefficients.T
    assert (np.abs(off) <= 0.501 * known.scales[:, None]).all()


def test_without_frequent_words_no_consensus_is_fitted() -> None:
    images = [image(word) for word in WORDS.ordinary_words]
    assert fit_consensus(np.zeros((10, 4), np.float32), images, WORDS) is None


def test_ridge_is_least_squares_with_extra_rows_of_zeros() -> None:
    """A ridge is the least squares of the data and of as many rows of zeros as there are slopes."""
    chance = np.random.default_rng(0)
    pooled = chance.normal([1, 2, 3, 9], [1, 5, 0.2, 1], size=(50, 4)).astype(np.float32)
    targets = chance.normal(size=(50, 2)).astype(np.float32)
    references = chance.integers(1, 6, 50)
    found = Ridge.fit(pooled, targets, references.tolist(), alpha=0.3)
    weights = references / references.mean()
    means = pooled[:, :3].astype(float)
    middle, width = means.mean(axis=0), means.std(axis=0, ddof=1)
    usual = np.average(targets, axis=0, weights=weights)
    rows = np.sqrt(weights)[:, None]
    left = np.concatenate([rows * (means - middle) / width, np.sqrt(0.3 * 50) * np.eye(3)])
    right = np.concatenate([rows * (targets - usual), np.zeros((3, 2))])
    slopes = np.linalg.lstsq(left, right, rcond=None)[0] / width[:, None]
    assert found.feature_mean == pytest.approx(middle) and found.intercept == pytest.approx(usual)
    assert found.coefficients == pytest.approx(slopes, rel=1e-4, abs=1e-6)
