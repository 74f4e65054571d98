"""Familiarity: how similar a photo is to the photos that a checkpoint was trained on.

The mean of a photo's grid is a point. Its distance from the mean of the training photos is measured
in units of their spread in each direction (Mahalanobis distance; Lee et al. 2018, section 2.1). The
directions of largest variance are kept, and all others share one variance (probabilistic PCA).
Familiarity is the share of held-out photos that are farther away: 0.5 is an ordinary photo, 0 is
farther than all of them.

Flat pictures, such as a black one or a page of text, lie near the mean, but their cells are all
alike. So familiarity is at most ten times the share of photos whose cells differ even less.

The statistics are in the trust file, see captioner.trust.trust.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

UNFAMILIAR = 0.01
"""Photos with less familiarity count as unlike the training photos. So does one in a hundred
ordinary photos."""

_FLAT = 10  # the factor for flat pictures, see above
_DIRECTIONS = 64


def multiply(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Return the matrix product in single precision or better, computed by PyTorch.

    NumPy's BLAS starts threads that keep spinning after a product. They slow down the encoding of
    the next photo.
    """
    import torch

    dtype = np.result_type(left, right, np.float32)
    factors = (torch.from_numpy(factor.astype(dtype, copy=False)) for factor in (left, right))
    product: NDArray[Any] = torch.matmul(*factors).numpy()
    return product


def pool(features: Tensor) -> NDArray[np.float32]:
    """Pool grids (B, L, D) to (B, D + 1).

    These are the mean of each feature over the cells and, in the last column, the mean of the
    features' standard deviations over the cells.
    """
    import torch

    features = features.float()
    means = features.mean(dim=1, keepdim=True)
    deviations = (features - means).square_().mean(dim=1).sqrt()
    pooled = torch.cat([means.squeeze(1), deviations.mean(dim=1, keepdim=True)], dim=1)
    array: NDArray[np.float32] = pooled.cpu().numpy()
    return array


@dataclass(frozen=True, kw_only=True, eq=False)
class Familiarity:
    """The distribution of the training photos' pooled grids.

    mean: (D,).
    directions: (D, K), the K directions of largest variance, orthonormal.
    widths: (K,), the variances along them.
    rest: (), the mean variance along all other directions.
    quantiles: (Q,), quantiles of the distances of held-out photos, rising.
    spreads: (Q,), quantiles of the last column of their pooled grids, rising.
    """

    mean: NDArray[Any]
    directions: NDArray[Any]
    widths: NDArray[Any]
    rest: NDArray[Any]
    quantiles: NDArray[Any]
    spreads: NDArray[Any]

    @classmethod
    def fit(cls, train: NDArray[Any], held_out: NDArray[Any]) -> Familiarity:
        """Fit the distribution of pooled grids.

        Args:
            train: (N, D + 1), pooled grids of training photos, see `pool`.
            held_out: (M, D + 1), pooled grids of held-out photos, for the quantiles.
        """
        train = train[:, :-1].astype(np.float64)
        mean = train.mean(axis=0)
        values, vectors = np.linalg.eigh(np.cov((train - mean).T))
        # N photos span N - 1 directions; the half with less variance is noise.
        count = max(1, min(_DIRECTIONS, len(values) - 1, (len(train) - 1) // 2))
        distribution = cls(
            mean=mean.astype(np.float16),
            directions=vectors[:, -count:].astype(np.float16),
            widths=values[-count:].clip(min=1e-12).astype(np.float32),
            rest=values[:-count].mean().clip(min=1e-12).astype(np.float32),
            quantiles=np.zeros(1, np.float32),
            spreads=np.zeros(1, np.float32),
        )
        steps = np.linspace(0, 1, min(201, len(held_out)))
        quantiles, spreads = (
            np.quantile(values, steps).astype(np.float32)
            for values in (distribution.distances(held_out), held_out[:, -1])
        )
        return replace(distribution, quantiles=quantiles, spreads=spreads)

    def distances(self, pooled: NDArray[Any]) -> NDArray[Any]:
        """Return the Mahalanobis distances (B,) of photos from their pooled grids (B, D + 1)."""
        offset = pooled[:, :-1] - self.mean
        along = multiply(offset, self.directions)
        beside = (offset**2).sum(axis=1) - (along**2).sum(axis=1)
        squares = (along**2 / self.widths).sum(axis=1) + beside.clip(min=0) / self.rest
        distances: NDArray[Any] = np.sqrt(squares)
        return distances

    def of(self, pooled: NDArray[Any]) -> list[float]:
        """Return the familiarity of B photos from their pooled grids (B, D + 1)."""
        shares = np.linspace(0, 1, len(self.quantiles))
        farther = 1 - np.interp(self.distances(pooled), self.quantiles, shares, right=1)
        flatter = np.interp(pooled[:, -1], self.spreads, shares, left=0)
        least = np.minimum(farther, _FLAT * flatter)
        familiarities: list[float] = np.nan_to_num(least, nan=0).tolist()
        return familiarities
