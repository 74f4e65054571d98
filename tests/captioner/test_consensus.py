"""Consensus: expected CIDEr calculated by hand, and the order of sentences."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from captioner import Captioner
from captioner.trust.consensus import Consensus
from captioner.trust.trust import digest_weights, trust_file
from tests.conftest import make_consensus, make_trust


@pytest.fixture
def known() -> Consensus:
    """Words 4 and 5 and "4 5", for grids of two features, of which usually the first is 1."""
    return Consensus(
        grams=np.array([[4, -1], [5, -1], [4, 5]], np.int32),
        idf=np.array([1.0, 2.0, 3.0], np.float32),
        mean_references=np.array([0.2, 0.1, 0.05], np.float32),
        coefficients=np.array([[10, 0], [0, -20], [30, 0]], np.int8),
        scales=np.array([0.01, 0.01, 0.001], np.float32),
        feature_mean=np.array([1.0, 0.0], np.float32),
    )


def test_the_expected_cider_by_hand(known: Consensus) -> None:
    """In the photo the first feature is 3, and the second -0.5."""
    offset = np.array([2.0, -0.5], np.float32)
    four, five, both = 0.2 + 0.1 * 2, 0.1 - 0.2 * -0.5, 0.05 + 0.03 * 2
    # "4 5": u = (1, 2) / sqrt(5) and (3) / 3; "4 4": u = 1, and a pair that nobody says.
    pair = ((1 * four + 2 * five) / math.sqrt(5) + both) / 2
    # 9 is not there: it is as rare as the rarest, and so are "5 9" and "9 4".
    other = (2 * five + 1 * four) / math.sqrt(4 + 9 + 1) / 2
    # The fourth has no pairs.
    sentences = [[4, 5], [4, 4], [5, 9, 4], [4], []]
    assert known.expect(offset, sentences) == pytest.approx([pair, four / 2, other, four / 2, 0])
    assert known.expect(0 * offset, [[5]]) == pytest.approx([0.1 / 2])
    assert known.expect(offset, []) == []


def test_sentences_are_sorted_by_expected_cider(known: Consensus) -> None:
    # The cells of a grid are averaged: the first photo is that of the test above.
    grids = torch.tensor([[[2.0, 0.0], [4.0, -1.0]], [[1.0, 2.0], [1.0, 2.0]]])
    beams = [[[9], [5], [4, 5], [8]], [[5], [4]]]
    assert known.rank(grids, beams, list) == [[[4, 5], [5], [9], [8]], [[4], [5]]]  # ties stay


def test_only_beams_are_reordered(tiny_file: Path, photo: Path) -> None:
    path = trust_file(tiny_file)
    make_trust(weights=digest_weights(tiny_file), consensus=make_consensus()).save(path)
    captioner = Captioner.from_pretrained(tiny_file, dtype="float32")
    assert captioner.consensus is not None

    def said(**settings: object) -> list[str]:
        caption = captioner.caption(photo, **settings)
        return [caption.text, *(other.text for other in caption.alternatives)]

    likeliest, chosen = said(captions=5, consensus=False), said(captions=5)
    assert sorted(chosen) == sorted(likeliest) and chosen != likeliest
    assert said() == chosen[:1] and said(captions=2) == chosen[:2]
    # The score is still that of the beam.
    ranked = captioner.caption(photo, captions=5, consensus=False)
    scores = {sentence.text: sentence.score for sentence in (ranked, *ranked.alternatives)}
    assert captioner.caption(photo).score == pytest.approx(scores[chosen[0]])
    # There is nothing to choose from.
    assert said(beam_size=1) == said(beam_size=1, consensus=False)
    drawn = {"sample": True, "seed": 1, "captions": 3}
    assert said(**drawn) == said(**drawn, consensus=False)
    # A file without it is one too, and then the likeliest come first.
    make_trust(weights=digest_weights(tiny_file)).save(path)
    captioner = Captioner.from_pretrained(tiny_file, dtype="float32")
    assert captioner.consensus is None and captioner.trust is not None
    assert said(captions=5) == likeliest
