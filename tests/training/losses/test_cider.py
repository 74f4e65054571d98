"""CIDEr-D against pycocoevalcap's CiderScorer."""

from __future__ import annotations

import random

import numpy as np
import pytest

from captioner_training.losses.cider import CiderD

WORDS = [f"w{number}" for number in range(30)]


def sentence(chance: random.Random, longest: int = 14) -> list[str]:
    return [chance.choice(WORDS) for _ in range(chance.randint(1, longest))]


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
