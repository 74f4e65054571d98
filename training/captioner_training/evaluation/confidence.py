"""Whether a caption's own probability tells how good it is.

Four questions about the captions that a model made: are its words in a reference as often as their
probabilities say; the same of whole captions, for the mean share of their words; does a higher mean
log-probability come with a higher CIDEr-D; and how good are the captions that are left when those
with the lowest are kept back (the risk-coverage curve of El-Yaniv and Wiener 2010, upside down).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from captioner_training.evaluation.bootstrap import RESAMPLES, Estimate, with_intervals
from captioner_training.evaluation.calibration import cross_fitted
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.reliability import measure_reliability

__all__ = ["coverage_curve", "measure_confidence", "rank_correlation"]

Floats = NDArray[np.float64]

# A probability p becomes p ** (1 / T): with T above 1 everything is more likely than it was said.
TEMPERATURES = np.round(np.geomspace(0.2, 5.0, 41), 3)
COVERAGES = tuple(share / 20 for share in range(1, 21))


def measure_confidence(
    captioned: Sequence[Captioned], quality: Sequence[float]
) -> dict[str, object]:
    """Answer the four questions.

    Args:
        captioned: a split.
        quality: CIDEr-D of each caption, in percent.

    Returns:
        `words` and `captions`: see _calibrated; `rank_correlation` of the mean log-probability and
        CIDEr-D over the images (Spearman), with its interval; `coverage`: see coverage_curve.

    """
    means = np.array([float(one.hypothesis.log_probabilities.mean()) for one in captioned])
    probabilities, right, owner = [], [], []
    for at, one in enumerate(captioned):
        known = {word for words in one.image.words for word in words}
        for word, log in zip(one.words, one.hypothesis.log_probabilities.tolist(), strict=False):
            probabilities.append(np.exp(log))
            right.append(float(word in known))
            owner.append(at)
    true, image = np.array(right), np.array(owner, dtype=int)
    count = np.maximum(np.bincount(image, minlength=len(captioned)), 1)
    share = np.bincount(image, true, minlength=len(captioned)) / count
    values = np.asarray(quality, np.float64)
    found = rank_correlation(means, values)
    return {
        "words": _calibrated(np.array(probabilities), true, image, images=len(captioned)),
        "captions": _calibrated(
            np.exp(means), share, np.arange(len(captioned)), images=len(captioned)
        ),
        **with_intervals({"rank_correlation": found}),
        "coverage": coverage_curve(means, values),
    }


def _calibrated(
    said: Floats, right: Floats, owner: NDArray[np.int_], *, images: int
) -> dict[str, object]:
    """Calibrate by a power, each half of the images by the other; as in calibration.py."""
    powered = np.clip(said[:, None], 1e-6, 1 - 1e-6) ** (1 / TEMPERATURES)
    surprise = -(right[:, None] * np.log(powered) + (1 - right[:, None]) * np.log1p(-powered))
    setting, best = cross_fitted(surprise, owner % 2)
    calibrated = np.take_along_axis(powered, setting[:, None], axis=1)[:, 0]
    measured = measure_reliability(said, calibrated, right, owner, images=images, share="right")
    return {"count": len(said), "temperature": float(TEMPERATURES[best]), **measured}


def rank_correlation(one: Floats, other: Floats, *, seed: int = 0) -> Estimate:
    """Correlate ranks (Spearman), with the interval of a bootstrap over the pairs.

    nan where one of them is the same everywhere.
    """
    chance = np.random.default_rng(seed)
    drawn = []
    for _ in range(RESAMPLES):
        index = chance.integers(len(one), size=len(one))
        drawn.append(_spearman(one[index], other[index]))
    finite = [value for value in drawn if np.isfinite(value)]
    low, high = np.quantile(finite, [0.025, 0.975]) if finite else (np.nan, np.nan)
    return Estimate(_spearman(one, other), float(low), float(high))


def _spearman(one: Floats, other: Floats) -> float:
    ranks = np.stack([_ranks(one), _ranks(other)])
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    lengths = np.sqrt((centred**2).sum(axis=1))
    return float(centred[0] @ centred[1] / lengths.prod()) if lengths.all() else float("nan")


def _ranks(values: Floats) -> Floats:
    """Rank values; equal ones share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    found: Floats = (last - (counts - 1) / 2)[inverse]
    return found


def coverage_curve(scores: Floats, quality: Floats) -> list[dict[str, float]]:
    """Say how good the best-scored captions are.

    Returns:
        For shares of the captions, those with the highest scores first: `coverage`, and `quality`,
        the mean of theirs; `ideal`, what could be reached by knowing the quality itself.

    """
    mine = quality[np.argsort(-scores, kind="stable")]
    ideal = np.sort(quality)[::-1]
    found = []
    for share in COVERAGES:
        many = max(1, round(share * len(mine)))
        found.append(
            {
                "coverage": share,
                "quality": float(mine[:many].mean()),
                "ideal": float(ideal[:many].mean()),
            }
        )
    return found
