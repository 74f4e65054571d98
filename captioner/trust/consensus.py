"""Consensus: which of several sentences the people who describe a photo would most agree with.

CIDEr compares the n-grams of a sentence c with those of what people said of a photo, S (Vedantam et
al. 2015, equation 2). With u(c), the vector of its n-grams' tf-idf weights (equation 1) divided by
its length,

    CIDEr_n(c, S) = u(c) . mean of u(s) over s in S

which is linear in what people said. So its expectation for a photo that nobody has described needs
that mean alone, and a ridge regression reads it from the mean of the photo's grid, without looking
at the sentence; n is 1 and 2. Devlin et al. 2015 ask the captions of similar photos instead. A beam
finds what is likely word by word; which of its sentences are true as a whole this tells better
(docs/results.md).

The numbers are in the file of captioner.trust, learned by `captioner trust`.
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
"""Longer n-grams are so rare that they bring nothing more."""

NGram = tuple[int, ...]
T = TypeVar("T")


def n_grams(tokens: Sequence[T], order: int) -> Iterable[tuple[T, ...]]:
    """List the n-grams of a sentence, of tokens or words, as often as they stand in it."""
    return zip(*(tokens[at:] for at in range(order)), strict=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Consensus:
    """What people would say of a photo, for G n-grams that are not too rare to be learned.

    grams: (G, 2), their tokens, the second -1 where there is but one; rarity: (G,), their inverse
    document frequencies. Of each, its mean over people's u(s): usual: (G,), of any photo; slopes:
    (G, D), in steps of scales: (G,), by how much it is more for each feature of the mean of the
    grid above middle: (D,).
    """

    grams: NDArray[Any]
    rarity: NDArray[Any]
    usual: NDArray[Any]
    slopes: NDArray[Any]
    scales: NDArray[Any]
    middle: NDArray[Any]

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together: ValueError."""
        count, features = self.slopes.shape
        shapes = {"grams": (count, 2), "middle": (features,)}
        shapes |= dict.fromkeys(("rarity", "usual", "scales"), (count,))
        fit = all(getattr(self, name).shape == shape for name, shape in shapes.items())
        numbers = (self.rarity, self.usual, self.scales, self.middle)
        fit = fit and count > 0 and all(np.isfinite(one).all() for one in numbers)
        if not fit or self.slopes.dtype != np.int8 or self.grams.dtype.kind != "i":
            raise ValueError("the parts of its consensus do not fit together")

    @cached_property
    def rows(self) -> dict[NGram, int]:
        """The place of each n-gram."""
        return {tuple(t for t in gram if t >= 0): at for at, gram in enumerate(self.grams.tolist())}

    def choose(
        self, features: Tensor, made: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Put the sentences for B photos, with the grids (B, L, D), in order, the best first."""
        ordered = []
        means = features.float().mean(dim=1).cpu().numpy()
        for offset, each in zip(means - self.middle, made, strict=True):
            expected = [self.expect(offset, one.tokens) for one in each]
            order = np.argsort(np.negative(expected), kind="stable")
            ordered.append([each[at] for at in order])
        return ordered

    def expect(self, offset: NDArray[np.float32], tokens: Sequence[int]) -> float:
        """Expect the CIDEr, 0 to 1, of a sentence for a photo that is `offset` (D,) from middle."""
        return sum(self._expect(offset, tokens, order) for order in ORDERS) / len(ORDERS)

    def _expect(self, offset: NDArray[np.float32], tokens: Sequence[int], order: int) -> float:
        counts = Counter(n_grams(tokens, order))
        rows = np.array([self.rows.get(gram, -1) for gram in counts], np.int64)
        known = rows >= 0
        weights = np.where(known, self.rarity[rows], self.rarity.max()) * [*counts.values()]
        length = np.sqrt((weights**2).sum())
        if length == 0:
            return 0.0
        # Not `@`: see Sight in trust.py.
        more = np.einsum("gd,d->g", self.slopes[rows[known]].astype(np.float32), offset)
        said = self.usual[rows[known]] + self.scales[rows[known]] * more
        return float((weights[known] * said).sum() / length)
