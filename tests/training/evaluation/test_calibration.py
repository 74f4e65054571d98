"""Worked by hand after Guo et al. 2017, section 2."""

from __future__ import annotations

import pytest

from captioner_training.evaluation.calibration import reliability


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
