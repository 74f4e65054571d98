"""Consensus: rank a beam's sentences by their expected CIDEr.

CIDEr compares the n-grams of a sentence c with those of the references S of a photo (Vedantam et
al. 2015, equation 2). Let u(c) be the tf-idf vector of the sentence's n-grams (equation 1), divided
by its length. Then

    CIDEr_n(c, S) = u(c) . mean of u(s) over s in S

This is linear in the references, so the expected CIDEr for a photo without references needs only
the expected mean of u(s). A ridge regression predicts it from the mean of the photo's grid, for n
of 1 and 2. (Devlin et al. 2015 use the captions of similar photos instead.)

The coefficients are in the trust file, see captioner.trust.trust.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from captioner.trust.familiarity import multiply

if TYPE_CHECKING:
    from torch import Tensor

ORDERS = (1, 2)
"""The n of the n-grams. Longer n-grams are too rare to help."""

NGram = tuple[int, ...]
T = TypeVar("T")


def n_grams(tokens: Sequence[T], order: int) -> Iterable[tuple[T, ...]]:
    """Iterate over the n-grams of a sentence of tokens or words, with repetitions."""
    return zip(*(tokens[at:] for at in range(order)), strict=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Consensus:
    """A ridge regression from the mean of a grid to the expected references, for G n-grams.

    grams: (G, 2) integers, the tokens of each n-gram; the second is -1 for a unigram.
    idf: (G,), the inverse document frequencies.
    mean_references: (G,), the mean of u(s) over the references of all photos.
    coefficients: (G, D) int8, the change of that mean with each feature, in units of `scales`.
    scales: (G,), the units of the coefficients.
    feature_mean: (D,), the mean of the training photos' features.
    """

    grams: NDArray[Any]
    idf: NDArray[Any]
    mean_references: NDArray[Any]
    coefficients: NDArray[Any]
    scales: NDArray[Any]
    feature_mean: NDArray[Any]

    def __post_init__(self) -> None:
        """Raise ValueError if the shapes or types do not fit together."""
        count, features = self.coefficients.shape
        shapes = {"grams": (count, 2), "feature_mean": (features,)}
        shapes |= dict.fromkeys(("idf", "mean_references", "scales"), (count,))
        fit = all(getattr(self, name).shape == shape for name, shape in shapes.items())
        numbers = (self.idf, self.mean_references, self.scales, self.feature_mean)
        fit = fit and count > 0 and all(np.isfinite(array).all() for array in numbers)
        if not fit or self.coefficients.dtype != np.int8 or self.grams.dtype.kind != "i":
            raise ValueError("the parts of its consensus do not fit together")

    @cached_property
    def _rows(self) -> dict[NGram, int]:
        """The row of each n-gram."""
        pairs = enumerate(self.grams.tolist())
        return {(first,) if second < 0 else (first, second): row for row, (first, second) in pairs}

    def rank(
        self, features: Tensor, beams: Sequence[Sequence[T]], tokens: Callable[[T], Sequence[int]]
    ) -> list[list[T]]:
        """Sort the sentences of B photos by expected CIDEr, best first.

        Args:
            features: (B, L, D), the photos' grids.
            beams: the sentences of each photo.
            tokens: returns the tokens of a sentence.
        """
        means = features.float().mean(dim=1).cpu().numpy()
        ranked = []
        for offset, beam in zip(means - self.feature_mean, beams, strict=True):
            expected = self.expect(offset, [*map(tokens, beam)])
            # Sorting is stable, so equally good sentences stay in the order of the beam.
            order = sorted(range(len(beam)), key=expected.__getitem__, reverse=True)
            ranked.append([beam[at] for at in order])
        return ranked

    def expect(self, offset: NDArray[Any], sentences: Sequence[Sequence[int]]) -> list[float]:
        """Return the expected CIDEr, 0 to 1, of a photo's sentences.

        Args:
            offset: (D,), the mean of the photo's grid minus `feature_mean`.
            sentences: the tokens of each sentence.
        """
        weights = [self._weigh(tokens) for tokens in sentences]
        rows = list({row for sentence in weights for row in sentence})
        changes = multiply(self.coefficients[rows], offset) * self.scales[rows]
        expected = dict(zip(rows, (self.mean_references[rows] + changes).tolist(), strict=True))
        return [
            sum(weight * expected[row] for row, weight in sentence.items()) / len(ORDERS)
            for sentence in weights
        ]

    def _weigh(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return the weights in u(c) of the known n-grams by row; unknown ones are the rarest."""
        weights: dict[int, float] = {}
        for order in ORDERS:
            counts = Counter(n_grams(tokens, order))
            rows = [self._rows.get(gram) for gram in counts]
            idf = (self._rarest if row is None else float(self.idf[row]) for row in rows)
            parts = [count * value for count, value in zip(counts.values(), idf, strict=True)]
            length = max(math.hypot(*parts), 1e-12)
            known = zip(rows, parts, strict=True)
            weights |= {row: part / length for row, part in known if row is not None}
        return weights

    @cached_property
    def _rarest(self) -> float:
        return float(self.idf.max())
