"""Reliability: what was said with a confidence of p, and how often it came true.

The predictions are put into ten bins of equal width by their confidence. The expected calibration
error (Guo et al. 2017, section 2) is how far the mean confidence of a bin is from its share of
right ones, weighted by the bins' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from captioner_training.evaluation.bootstrap import Table, estimate, mean_table, with_intervals

__all__ = [
    "BINS",
    "calibration_table",
    "measure_reliability",
    "reliability_bins",
    "reliability_rows",
]

Floats = NDArray[np.float64]

BINS = 10


def measure_reliability(
    said: Floats,
    calibrated: Floats,
    right: NDArray[np.generic],
    image: NDArray[np.int_],
    *,
    images: int,
    share: str,
    beside: Mapping[str, Table] | None = None,
) -> dict[str, object]:
    """Tell how confident predictions were and how often right, before and after calibration.

    Args:
        said: (N,), in 0..1, what was said of each prediction.
        calibrated: (N,), in 0..1, the same after calibration.
        right: (N,), in 0..1, how right it was.
        image: (N,), to which image it belongs.
        images: how many there are.
        share: the name of the share that was right.
        beside: other scores of the same images, which are drawn again together with these.

    Returns:
        mean `confidence` and the share, in percent; the expected calibration errors `error` and
        `error_calibrated`; what is beside them; `bins` and `bins_calibrated`, see
        reliability_bins. All but the bins have intervals.

    """
    rows = reliability_rows(said, right, image, images=images)
    after = reliability_rows(calibrated, right, image, images=images)
    count = np.bincount(image, minlength=images)
    tables = {
        "confidence": mean_table(np.bincount(image, said, minlength=images), count, scale=100),
        share: mean_table(np.bincount(image, right, minlength=images), count, scale=100),
        "error": calibration_table(rows),
        "error_calibrated": calibration_table(after),
        **(beside or {}),
    }
    bins = {"bins": reliability_bins(rows), "bins_calibrated": reliability_bins(after)}
    return {**with_intervals(estimate(tables)), **bins}


def reliability_rows(
    confidence: ArrayLike, right: ArrayLike, image: ArrayLike, *, images: int
) -> Floats:
    """Sum up predictions by image and bin.

    Args:
        confidence: (N,), in 0..1, what was said of each prediction.
        right: (N,), in 0..1, how right it was: 1 or 0 where it is one or the other.
        image: (N,), to which image it belongs.
        images: how many there are.

    Returns:
        (images, 3 * BINS): of each bin how many, the sum of confidence, the sum of right.

    """
    said, true = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    bin_of = np.clip(np.ceil(said * BINS).astype(int), 1, BINS) - 1
    place = np.asarray(image) * BINS + bin_of
    sums = [
        np.bincount(place, weights=one, minlength=images * BINS).reshape(images, BINS)
        for one in (np.ones_like(said), said, true)
    ]
    return np.concatenate(sums, axis=1)


def calibration_table(rows: Floats) -> Table:
    """Make the table of the expected calibration error, in percent, from `reliability_rows`."""
    return Table(rows, _error)


def _error(sums: Floats) -> Floats:
    count, said, true = np.split(sums, 3, axis=-1)
    total = np.maximum(count.sum(axis=-1), 1)
    found: Floats = 100 * np.abs(said - true).sum(axis=-1) / total
    return found


def reliability_bins(rows: Floats) -> list[dict[str, float]]:
    """Tell each bin that has predictions: `count`, mean `confidence`, share `right`, 0 to 1."""
    count, said, true = np.split(rows.sum(axis=0), 3)
    return [
        {"count": int(n), "confidence": float(c / n), "right": float(r / n)}
        for n, c, r in zip(count, said, true, strict=True)
        if n
    ]
