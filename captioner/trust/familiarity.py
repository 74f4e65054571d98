"""How much a photo is like those that a checkpoint has learned from.

The mean of a photo's grid is a point; the points of the training photos make a cloud. How far a
photo lies from its middle is measured by how wide the cloud is in each direction (Mahalanobis
distance; Lee et al. 2018, section 2.1). The widest directions are kept one by one, all others share
one width (probabilistic PCA), so that the statistics are small. Familiarity is the share of photos
that were kept back from the cloud and lie farther out: 0.5 is an ordinary photo, and 0 one that is
farther out than all of them.

A flat picture, such as a black one or a page of text, lies near the middle and is no photo: its
cells are all alike. So familiarity is at most ten times the share of photos whose cells differ even
less. Hardly a photo is as flat as such pictures are, and few photos are called unlike for it.

The statistics are in the file that captioner.trust reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["UNFAMILIAR", "Familiarity", "pool"]

UNFAMILIAR = 0.01
"""Below it a photo counts as unlike those of the training: one in a hundred of that kind does too.

A warning that ordinary photos get more often would be overlooked where it is true.
"""

_FLAT = 10  # times
_DIRECTIONS = 64  # 160 kB


def pool(features: Tensor | NDArray[np.float32]) -> NDArray[np.float32]:
    """Pool grids (B, L, D) to what familiarity and trust see of them.

    Returns:
        (B, D + 1), the mean of each feature over the cells, and last how much the cells differ:
        the mean of all features' standard deviations.
    """
    if not isinstance(features, np.ndarray):
        features = features.float().cpu().numpy()
    spread = features.std(axis=1).mean(axis=1, keepdims=True)
    return np.concatenate([features.mean(axis=1), spread], axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Familiarity:
    """The cloud of the training photos.

    mean: (D,), its middle; directions: (D, K), its K widest, orthonormal; widths: (K,), the
    variances along them; rest: (), the mean variance along all others; quantiles: (Q,), distances
    of photos kept back, rising from the nearest to the farthest; spreads: (Q,), how much the cells
    of these differ, rising too.
    """

    mean: NDArray[Any]
    directions: NDArray[Any]
    widths: NDArray[Any]
    rest: NDArray[Any]
    quantiles: NDArray[Any]
    spreads: NDArray[Any]

    @classmethod
    def fit(cls, seen: NDArray[Any], kept_back: NDArray[Any]) -> Familiarity:
        """Describe the cloud of `seen` (N, D + 1), see pool; `kept_back` (M, D + 1) are others."""
        seen = seen[:, :-1].astype(np.float64)
        mean = seen.mean(axis=0)
        values, vectors = np.linalg.eigh(np.cov((seen - mean).T))
        # Of N photos the widths of the last of N - 1 directions are noise: half of them are kept.
        count = max(1, min(_DIRECTIONS, len(values) - 1, (len(seen) - 1) // 2))
        cloud = cls(
            mean=mean.astype(np.float16),
            directions=vectors[:, -count:].astype(np.float16),
            widths=values[-count:].clip(min=1e-12).astype(np.float32),
            rest=values[:-count].mean().clip(min=1e-12).astype(np.float32),
            quantiles=np.zeros(1, np.float32),
            spreads=np.zeros(1, np.float32),
        )
        steps = np.linspace(0, 1, min(201, len(kept_back)))
        quantiles, spreads = (
            np.quantile(each, steps).astype(np.float32)
            for each in (cloud.distances(kept_back), kept_back[:, -1])
        )
        return replace(cloud, quantiles=quantiles, spreads=spreads)

    def distances(self, pooled: NDArray[Any]) -> NDArray[np.float32]:
        """Measure how far out photos lie, from their pooled grids (B, D + 1): (B,)."""
        offset = pooled[:, :-1] - self.mean.astype(np.float32)
        # Not `@`: see Sight in trust.py.
        along = np.einsum("bd,dk->bk", offset, self.directions.astype(np.float32))
        beside = (offset**2).sum(axis=-1) - (along**2).sum(axis=-1)
        squares = (along**2 / self.widths).sum(axis=-1) + beside.clip(min=0) / self.rest
        found: NDArray[np.float32] = np.sqrt(squares)
        return found

    def of(self, pooled: NDArray[Any]) -> list[float]:
        """Give the familiarity of photos from their pooled grids (B, D + 1)."""
        far = self.distances(pooled)
        shares = np.linspace(0, 1, len(self.quantiles))
        farther = 1 - np.interp(far, self.quantiles, shares, right=1)
        flatter = np.interp(pooled[:, -1], self.spreads, shares, left=0)
        least = np.minimum(farther, _FLAT * flatter)
        found: list[float] = np.nan_to_num(least, nan=0).tolist()
        return found
