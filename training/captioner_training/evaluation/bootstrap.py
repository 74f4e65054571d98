"""Bootstrap intervals of scores over images (Efron 1979).

Every score here is a function of sums over images. A bootstrap sample draws N of the N images with
replacement. Only the sums are recomputed, not the counts of each image. All scores of a report use
the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_RESAMPLES = 1000  # a multiple of _CHUNK
# Largest number of distinct scores in a ranking. Rounding to them costs less than 1e-4.
_LEVELS = 256
_CHUNK = 100  # samples computed at once: 32 MB for COCO's 40,000 images


class Table(NamedTuple):
    """The counts of each image that a score needs, and the score as a function of their sums.

    rows: (N, P), P counts of each of N images.
    score: maps sums (..., P) to scores (...).
    """

    rows: Floats
    score: Callable[[Floats], Floats]

    def value(self) -> float:
        """Return the score of all images."""
        return float(self.score(self.rows.sum(axis=0)))

    def of_images(self) -> list[float]:
        """Return the score of each image."""
        scores: list[float] = self.score(self.rows).tolist()
        return scores


def mean_table(values: ArrayLike, counts: ArrayLike | None = None, *, scale: float = 1.0) -> Table:
    """Return the table of a mean, from the sum and the count of the values of each image, (N,)."""
    total = np.asarray(values, dtype=np.float64)
    number = np.ones_like(total) if counts is None else np.asarray(counts, dtype=np.float64)

    def score(sums: Floats) -> Floats:
        mean = np.full_like(sums[..., 0], np.nan)  # NaN where a sample has no value
        return scale * np.divide(sums[..., 0], sums[..., 1], out=mean, where=sums[..., 1] > 0)

    return Table(np.stack([total, number], axis=1), score)


def ranking_table(scores: ArrayLike, right: ArrayLike, image: ArrayLike, *, images: int) -> Table:
    """Return the table of the area under the ROC curve.

    The area is the probability that a right prediction has a higher score than a wrong one; ties
    count half. `scores`, `right` and `image`, the index of its image, are of N predictions: (N,).
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
        area: Floats = np.full_like(pairs, np.nan)
        np.divide((won * below).sum(axis=-1), pairs, out=area, where=pairs > 0)
        return area

    return Table(np.concatenate(rows, axis=1).astype(np.float64), score)


def summary(tables: Mapping[str, Table]) -> dict[str, Any]:
    """Return scores by name for a report, and their 95 % `intervals` as [low, high].

    Tables must have the same images in the same order.
    """
    if not tables:
        return {"intervals": {}}
    rows = np.concatenate([table.rows for table in tables.values()], axis=1)
    images = len(rows)
    chance = np.random.default_rng(0)
    parts = [rows.sum(axis=0, keepdims=True)]  # the first row is the sum over all images
    for _ in range(_RESAMPLES // _CHUNK):
        times = chance.multinomial(images, np.full(images, 1 / images), size=_CHUNK)
        parts.append(times.astype(np.float64) @ rows)
    widths = [table.rows.shape[1] for table in tables.values()]
    sums = np.split(np.concatenate(parts), np.cumsum(widths)[:-1], axis=1)
    values, intervals = dict[str, Any](), dict[str, list[float]]()
    for (name, table), part in zip(tables.items(), sums, strict=True):
        values[name], *samples = table.score(part).tolist()
        intervals[name] = _interval(samples if images > 1 else [])
    return {**values, "intervals": intervals}


def _interval(samples: Sequence[float]) -> list[float]:
    """Return the interval of the samples that are finite."""
    finite = [sample for sample in samples if math.isfinite(sample)]
    return np.quantile(finite, [0.025, 0.975]).tolist() if finite else [math.nan, math.nan]
