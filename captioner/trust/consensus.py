"""Consensus: ranks a beam's sentences by the CIDEr that they can expect.

CIDEr compares the n-grams of a sentence c with those of the references S of a photo (Vedantam et
al. 2015, equation 2). With u(c), the tf-idf vector of the sentence's n-grams (equation 1) divided
by its length,

    CIDEr_n(c, S) = u(c) . mean of u(s) over s in S

This is linear in the references, so the expected CIDEr for a photo without references needs only
the expected mean of u(s). A ridge regression predicts it from the mean of the photo's grid, for n
of 1 and 2. (Devlin et al. 2015 use the captions of similar photos instead.)

The coefficients are in the trust file, see captioner.trust.trust.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from captioner.generation.hypothesis import Hypothesis

__all__ = ["ORDERS", "Consensus", "NGram", "n_grams"]

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

    grams: (G, 2) integers, their tokens; the second is -1 for a unigram.
    rarity: (G,), their inverse document frequencies.
    usual: (G,), the mean of u(s) over the references of all photos.
    slopes: (G, D) int8, the change of that mean with each feature, in units of `scales`.
    scales: (G,).
    middle: (D,), the mean of the training photos' features.
    """

    grams: NDArray[Any]
    rarity: NDArray[Any]
    usual: NDArray[Any]
    slopes: NDArray[Any]
    scales: NDArray[Any]
    middle: NDArray[Any]

    def __post_init__(self) -> None:
        """Raise ValueError if the shapes or types do not fit together."""
        count, features = self.slopes.shape
        shapes = {"grams": (count, 2), "middle": (features,)}
        shapes |= dict.fromkeys(("rarity", "usual", "scales"), (count,))
        fit = all(getattr(self, name).shape == shape for name, shape in shapes.items())
        numbers = (self.rarity, self.usual, self.scales, self.middle)
        fit = fit and count > 0 and all(np.isfinite(array).all() for array in numbers)
        if not fit or self.slopes.dtype != np.int8 or self.grams.dtype.kind != "i":
            raise ValueError("the parts of its consensus do not fit together")

    @cached_property
    def rows(self) -> dict[NGram, int]:
        """The row of each n-gram."""
        return {tuple(t for t in gram if t >= 0): at for at, gram in enumerate(self.grams.tolist())}

    def choose(
        self, features: Tensor, beams: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Sort the sentences of B photos by expected CIDEr, best first.

        Args:
            features: (B, L, D), the photos' grids.
            beams: of each photo, its sentences.
        """
        tokens = [[hypothesis.tokens for hypothesis in beam] for beam in beams]
        pairs = zip(beams, self.order(features, tokens), strict=True)
        return [[beam[at] for at in order] for beam, order in pairs]

    def order(self, features: Tensor, beams: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
        """Return the places of B beams' sentences, given as tokens, by expected CIDEr."""
        orders = []
        means = features.float().mean(dim=1).cpu().numpy()
        for offset, beam in zip(means - self.middle, beams, strict=True):
            expected = [self.expect(offset, tokens) for tokens in beam]
            orders.append(np.argsort(np.negative(expected), kind="stable").tolist())
        return orders

    def expect(self, offset: NDArray[np.float32], tokens: Sequence[int]) -> float:
        """Return the expected CIDEr, 0 to 1, of a sentence.

        Args:
            offset: (D,), the mean of the photo's grid less `middle`.
            tokens: of the sentence.
        """
        return sum(self._expect(offset, tokens, order) for order in ORDERS) / len(ORDERS)

    def _expect(self, offset: NDArray[np.float32], tokens: Sequence[int], order: int) -> float:
        counts = Counter(n_grams(tokens, order))
        rows = np.array([self.rows.get(gram, -1) for gram in counts], np.int64)
        is_known = rows >= 0
        weights = np.where(is_known, self.rarity[rows], self.rarity.max()) * [*counts.values()]
        length = np.sqrt((weights**2).sum())
        if length == 0:
            return 0.0
        # einsum instead of `@`: see WordFeatures in trust.py.
        more = np.einsum("gd,d->g", self.slopes[rows[is_known]].astype(np.float32), offset)
        expected = self.usual[rows[is_known]] + self.scales[rows[is_known]] * more
        return float((weights[is_known] * expected).sum() / length)
