"""Ridge regression from a photo's mean grid features to statistics of its references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from captioner_training.evaluation.bootstrap import Floats

_LEAST_SHARE = 600  # one in this many photos
_LEAST_PHOTOS = 5


def fewest_photos(photos: int) -> int:
    """Return the least number of training photos that a word or n-gram must occur in.

    Args:
        photos: the number of training photos.
    """
    return max(_LEAST_PHOTOS, -(-photos // _LEAST_SHARE))


class Ridge(NamedTuple):
    """A linear model of T targets: usual (T,) + (grid mean - middle (D,)) @ slopes (D, T)."""

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
        """Fit targets (N, T) to pooled grids (N, D + 1).

        Args:
            pooled: see captioner.trust.familiarity.pool.
            targets: the values to predict for each photo.
            references: the number of references of each photo, which is the photo's weight.
            strength: regularisation per photo, for features of unit variance.
        """
        weights = np.array(references, np.float64)
        weights /= weights.mean()
        means = pooled[:, :-1].astype(np.float64)
        middle = means.mean(axis=0)
        width = means.std(axis=0, ddof=1).clip(min=1e-6)
        offset = (means - middle) / width
        weighted = offset.T * weights
        # Targets stay in float32: in float64 they take gigabytes.
        usual = (weights.astype(np.float32) @ targets) / len(targets)
        square = weighted @ offset + strength * len(targets) * np.eye(len(width))
        product = weighted.astype(np.float32) @ targets - np.outer(weighted.sum(axis=1), usual)
        return cls(middle, usual, np.linalg.solve(square, product) / width[:, np.newaxis])
