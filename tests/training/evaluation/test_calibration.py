"""Worked by hand after Guo et al. 2017, sections 2 and 4.2."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from captioner.generation.hypothesis import Hypothesis
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.evaluation.calibration import (
    coverage_curve,
    cross_fitted,
    measure_confidence,
    rank_correlation,
    reliability,
)
from captioner_training.evaluation.captioned import Captioned


@pytest.mark.parametrize(
    ("confidence", "right", "error"),
    [
        # Bin (0.5, 0.6]: mean 0.55, 1 of 2 right, gap 0.05. Bin (0.9, 1]: mean 0.95, none of 1
        # right, gap 0.95. (2 * 0.05 + 1 * 0.95) / 3 = 0.35.
        ([0.52, 0.58, 0.95], [1, 0, 0], 0.35),
        # The means agree (0.5 and 0.5), the bins are off by 0.8 each.
        ([0.2, 0.8], [1, 0], 0.8),
        ([1.0], [1.0], 0),
    ],
)
def test_the_gap_of_each_bin_counts_by_its_size(
    confidence: list[float], right: list[float], error: float
) -> None:
    table, bins = reliability(confidence, right, [0] * len(right), images=1)
    assert table.value() / 100 == pytest.approx(error)
    assert sum(one["count"] for one in bins) == len(right)
    if len(right) == 3:
        assert bins[0] == pytest.approx({"count": 2, "confidence": 0.55, "right": 0.5})


def test_each_half_is_calibrated_by_the_other() -> None:
    # Setting 0 is best for half 0, setting 1 for half 1 and for both together.
    surprise = np.array([[1.0, 2.0], [1.0, 2.0], [5.0, 1.0], [5.0, 1.0]])
    setting, best = cross_fitted(surprise, np.array([0, 0, 1, 1]))
    assert setting.tolist() == [1, 1, 0, 0] and best == 1


def test_ranks_are_spearmans() -> None:
    one, other = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 5])
    # 1 - 6 * (1 + 1 + 1 + 1) / (5 * 24) = 0.8
    assert rank_correlation(one, other).value == pytest.approx(0.8)
    assert rank_correlation(one, one**3).value == pytest.approx(1)
    ties = rank_correlation(np.array([1.0, 1, 2]), np.array([1.0, 2, 3]))
    assert ties.value == pytest.approx(math.sqrt(3) / 2)  # ranks 1.5 1.5 3 against 1 2 3
    assert math.isnan(rank_correlation(np.ones(3), np.array([1.0, 2, 3])).value)


def test_the_best_scored_come_first() -> None:
    curve = coverage_curve(np.array([0.1, 0.9, 0.5, 0.2]), np.array([40.0, 80, 20, 100]))
    by_share = {round(one["coverage"], 2): one for one in curve}
    assert by_share[0.25] == pytest.approx({"coverage": 0.25, "quality": 80, "ideal": 100})
    assert by_share[0.5]["quality"] == 50 and by_share[0.5]["ideal"] == 90
    assert by_share[1.0]["quality"] == by_share[1.0]["ideal"] == 60


def test_words_of_a_caption_are_right_where_a_reference_has_them() -> None:
    store = ImageStore.from_members((), pattern=Path("nowhere"), identity="none")
    image = CaptionedImage(
        name="a.jpg", id=1, store=store, captions=("a dog",), words=(("a", "dog"),)
    )
    logs = torch.tensor([0.8, 0.4, 0.5]).log()
    hypothesis = Hypothesis(tokens=[4, 5], score=float(logs.mean()), log_probabilities=logs)
    one = Captioned(image=image, hypothesis=hypothesis, words=["a", "cat"], attention=None)
    found = measure_confidence([one, one], [50.0, 60.0])
    words, captions = found["words"], found["captions"]
    assert isinstance(words, dict) and isinstance(captions, dict)
    assert words["count"] == 4 and words["right"] == pytest.approx(50)
    assert words["confidence"] == pytest.approx(60)
    assert words["error"] == pytest.approx(30)  # 0.8 and right, 0.4 and wrong
    assert captions["confidence"] == pytest.approx(100 * (0.8 * 0.4 * 0.5) ** (1 / 3))
    assert captions["right"] == pytest.approx(50)
