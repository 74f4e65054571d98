"""Worked by hand after Guo et al. 2017, section 2."""

from __future__ import annotations

import pytest
import torch

from captioner_training.evaluation.calibration import calibration_error


def test_the_gap_of_each_bin_counts_by_its_size() -> None:
    # Bin (0.5, 0.6]: mean 0.55, 1 of 2 right, gap 0.05. Bin (0.9, 1]: mean 0.95, none of 1 right,
    # gap 0.95. (2 * 0.05 + 1 * 0.95) / 3 = 0.35.
    confidence = torch.tensor([0.52, 0.58, 0.95])
    assert calibration_error(confidence, torch.tensor([1, 0, 0])) == pytest.approx(0.35)


def test_gaps_of_different_bins_do_not_cancel() -> None:
    # 0.2 and right, 0.8 and wrong: the means agree (0.5 and 0.5), the bins are off by 0.8 each.
    assert calibration_error(torch.tensor([0.2, 0.8]), torch.tensor([1, 0])) == pytest.approx(0.8)


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_the_ends_of_the_scale_lie_in_a_bin(confidence: float) -> None:
    right = torch.tensor([confidence])
    assert calibration_error(torch.tensor([confidence]), right) == 0.0
