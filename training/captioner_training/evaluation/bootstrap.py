"""Intervals of scores: what other images of the same kind could have given.

Every score here is a function of sums over images. The bootstrap (Efron 1979) draws as many images
as there are, with replacement, a thousand times; only the sums are worked out again, not what was
counted in each image. All scores of one report are resampled together, on the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Estimate",
    "Floats",
    "Table",
    "estimate",
    "mean_table",
    "ranking_table",
    "summary",
]

Floats = NDArray[np.float64]

_RESAMPLES = 1000  # the ends of a 95 % interval rest on 25 draws each
_LEVELS = 256  # of scores that are compared: the error of a ranking's area is below 1e-4
_CHUNK = 100  # draws at once: 32 MB for COCO's 40,000 images


class Table(NamedTuple):
    """A score, and what it needs to know of each image.

    rows: (N, P), what was counted in each of N images; score: takes sums (..., P) over images and
    gives the score (...).
    """

    rows: Floats
    score: Callable[[Floats], Floats]

    def value(self) -> float:
        """Work the score out on the images as they are."""
        return float(self.score(self.rows.sum(axis=0)))


class Estimate(NamedTuple):
    """A score with the 95 % interval of the bootstrap over images."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, draws: ArrayLike) -> Estimate:
        """Take the interval from the scores of the draws; those that are no number are left out."""
        drawn = np.asarray(draws, dtype=np.float64)
        drawn = drawn[np.isfinite(drawn)]
        low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
        return cls(float(value), float(low), float(high))


def mean_table(values: ArrayLike, counts: ArrayLike | None = None, *, scale: float = 1.0) -> Table:
    """Make the table of a mean.

    Args:
        values: (N,), the sum of what is averaged in each image.
        counts: (N,), of how many it is the sum; None: one an image.
        scale: 100 for percent.
    """
    total = np.asarray(values, dtype=np.float64)
    many = np.ones_like(total) if counts is None else np.asarray(counts, dtype=np.float64)

    def score(sums: Floats) -> Floats:
        # A draw without any word to measure has no mean; it is left out of the interval.
        nothing = np.full_like(sums[..., 0], np.nan)
        return scale * np.divide(sums[..., 0], sums[..., 1], out=nothing, where=sums[..., 1] > 0)

    return Table(np.stack([total, many], axis=1), score)


def ranking_table(scores: ArrayLike, right: ArrayLike, image: ArrayLike, *, images: int) -> Table:
    """Make the table of the area under the ROC curve.

    It is how often what is right has a higher score than what is wrong; ties count half.

    Args:
        scores: (N,), of predictions.
        right: (N,), whether they were right.
        image: (N,), to which image each belongs.
        images: how many there are.
    """
    values, true = np.asarray(scores, np.float64), np.asarray(right, bool)
    levels = np.unique(values)
    if len(levels) > _LEVELS:
        levels = np.unique(np.quantile(values, np.linspace(0, 1, _LEVELS), method="nearest"))
    place = np.searchsorted(levels, values) + len(levels) * np.asarray(image)
    shape = images, len(levels)
    rows = [
        np.bincount(place[kind], minlength=images * len(levels)).reshape(shape)
        for kind in (true, ~true)
    ]

    def score(sums: Floats) -> Floats:
        won, lost = np.split(sums, 2, axis=-1)
        below = lost.cumsum(axis=-1) - lost / 2
        pairs = won.sum(axis=-1) * lost.sum(axis=-1)
        found: Floats = np.full_like(pairs, np.nan)
        np.divide((won * below).sum(axis=-1), pairs, out=found, where=pairs > 0)
        return found

    return Table(np.concatenate(rows, axis=1).astype(np.float64), score)


def estimate(tables: Mapping[str, Table]) -> dict[str, Estimate]:
    """Give each score its interval; the tables are of the same images in the same order."""
    if not tables:
        return {}
    rows = np.concatenate([table.rows for table in tables.values()], axis=1)
    images = len(rows)
    chance = np.random.default_rng(0)
    parts = [rows.sum(axis=0, keepdims=True)]  # first the images as they are
    for first in range(0, _RESAMPLES, _CHUNK):
        draws = min(_CHUNK, _RESAMPLES - first)
        times = chance.multinomial(images, np.full(images, 1 / images), size=draws)
        parts.append(times.astype(np.float64) @ rows)
    sums = np.concatenate(parts)
    found, first = {}, 0
    for name, table in tables.items():
        width = table.rows.shape[1]
        value, *draws_of = table.score(sums[:, first : first + width])
        first += width
        found[name] = Estimate.of(value, draws_of)
    return found


def summary(tables: Mapping[str, Table]) -> dict[str, object]:
    """Estimate scores, and write them for a report: by name, and `intervals`, [low, high]."""
    estimates = estimate(tables)
    values: dict[str, object] = {name: one.value for name, one in estimates.items()}
    return {**values, "intervals": {name: [one.low, one.high] for name, one in estimates.items()}}
