"""Ridge regression from the mean of a photo's grid to what people say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from captioner_training.evaluation.bootstrap import Floats

__all__ = ["Ridge", "fewest_photos"]

_RARE = 600  # what fewer than one of so many photos have is rare
_PHOTOS = 5  # or fewer than so many


def fewest_photos(photos: int) -> int:
    """Say how many photos of a training have something at least that can be learned of them."""
    return max(_PHOTOS, -(-photos // _RARE))


class Ridge(NamedTuple):
    """T targets of a photo: usual (T,) + (mean of the grid - middle (D,)) slopes (D, T)."""

    middle: Floats
    usual: Floats
    slopes: Floats

    @classmethod
    def fit(
        cls,
        pooled: NDArray[np.float32],
        targets: NDArray[np.float32],
        references: Sequence[int],
        *,
        strength: float,
    ) -> Ridge:
        """Learn targets (N, T) from pooled grids (N, D + 1).

        Args:
            pooled: see captioner.trust.familiarity.pool.
            targets: of the photos.
            references: how many each photo has: with more of them it says more.
            strength: of the pull towards 0, a photo, for features of width 1.
        """
        weights = np.array(references, np.float64)
        weights /= weights.mean()
        means = pooled[:, :-1].astype(np.float64)
        middle = means.mean(axis=0)
        width = means.std(axis=0, ddof=1).clip(min=1e-6)
        offset = (means - middle) / width
        weighted = offset.T * weights
        # Targets in single precision: in double, so many take gigabytes.
        usual = (weights.astype(np.float32) @ targets) / len(targets)
        square = weighted @ offset + strength * len(targets) * np.eye(len(width))
        product = weighted.astype(np.float32) @ targets - np.outer(weighted.sum(axis=1), usual)
        return cls(middle, usual, np.linalg.solve(square, product) / width[:, np.newaxis])
