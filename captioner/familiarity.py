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

import numpy as np
import torch
from torch import Tensor

__all__ = ["UNFAMILIAR", "Familiarity", "pool"]

UNFAMILIAR = 0.01
"""Below it a photo counts as unlike those of the training: one in a hundred of that kind does too.

A warning that ordinary photos get more often would be overlooked where it is true.
"""

_FLAT = 10  # times
_DIRECTIONS = 64  # 160 kB


def pool(features: Tensor) -> Tensor:
    """Pool grids (B, L, D) to what familiarity and trust see of them.

    Returns:
        (B, D + 1), the mean of each feature over the cells, and last how much the cells differ:
        the mean of all features' standard deviations.

    """
    features = features.float()
    spread = features.std(dim=1, correction=0).mean(dim=1, keepdim=True)
    return torch.cat([features.mean(dim=1), spread], dim=1).cpu()


@dataclass(frozen=True, kw_only=True, eq=False)
class Familiarity:
    """The cloud of the training photos.

    mean: (D,), its middle; directions: (D, K), its K widest, orthonormal; widths: (K,), the
    variances along them; rest: (), the mean variance along all others; quantiles: (Q,), distances
    of photos kept back, rising from the nearest to the farthest; spreads: (Q,), how much the cells
    of these differ, rising too.
    """

    mean: Tensor
    directions: Tensor
    widths: Tensor
    rest: Tensor
    quantiles: Tensor
    spreads: Tensor

    @classmethod
    def fit(cls, seen: Tensor, kept_back: Tensor) -> Familiarity:
        """Describe the cloud of `seen` (N, D + 1), see pool; `kept_back` (M, D + 1) are others."""
        seen = seen[:, :-1].double()
        mean = seen.mean(dim=0)
        values, vectors = torch.linalg.eigh(torch.cov((seen - mean).T))
        # Of N photos the widths of the last of N - 1 directions are noise: half of them are kept.
        count = max(1, min(_DIRECTIONS, len(values) - 1, (len(seen) - 1) // 2))
        cloud = cls(
            mean=mean.half(),
            directions=vectors[:, -count:].half(),
            widths=values[-count:].clamp(min=1e-12).float(),
            rest=values[:-count].mean().clamp(min=1e-12).float(),
            quantiles=torch.zeros(1),
            spreads=torch.zeros(1),
        )
        steps = torch.linspace(0, 1, min(201, len(kept_back)))
        quantiles = torch.quantile(cloud.distances(kept_back), steps)
        return replace(cloud, quantiles=quantiles, spreads=torch.quantile(kept_back[:, -1], steps))

    def distances(self, pooled: Tensor) -> Tensor:
        """Measure how far out photos lie, from their pooled grids (B, D + 1): (B,)."""
        offset = pooled[:, :-1] - self.mean.float()
        along = offset @ self.directions.float()
        beside = offset.square().sum(dim=-1) - along.square().sum(dim=-1)
        squares = (along.square() / self.widths).sum(dim=-1) + beside.clamp(min=0) / self.rest
        return squares.sqrt()

    def of(self, pooled: Tensor) -> list[float]:
        """Give the familiarity of photos from their pooled grids (B, D + 1)."""
        far = self.distances(pooled).numpy()
        shares = np.linspace(0, 1, len(self.quantiles))
        farther = 1 - np.interp(far, self.quantiles.numpy(), shares, right=1)
        flatter = np.interp(pooled[:, -1].numpy(), self.spreads.numpy(), shares, left=0)
        least = np.minimum(farther, _FLAT * flatter)
        found: list[float] = np.nan_to_num(least, nan=0).tolist()
        return found
