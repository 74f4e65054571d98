"""Familiarity: distances against Mahalanobis' formula, and shares of photos."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from captioner.familiarity import Familiarity, pool
from captioner_training.evaluation.familiarity import auroc


def cloud(count: int, *, seed: int) -> np.ndarray:
    chance = np.random.default_rng(seed)
    means = chance.normal(size=(count, 3)) * [3.0, 1.0, 0.5] + 2
    return np.concatenate([means, chance.random((count, 1)) + 1], axis=1).astype(np.float32)


def test_a_grid_is_pooled_to_its_mean_and_how_much_its_cells_differ() -> None:
    features = torch.tensor([[[0.0, 5.0], [2.0, 5.0], [4.0, 2.0], [2.0, 8.0]]])
    deviations = 2.0**0.5, 4.5**0.5
    wanted = pytest.approx(np.array([[2.0, 5.0, sum(deviations) / 2]]))
    assert pool(features) == wanted and pool(features.numpy()) == wanted


def test_distances_are_mahalanobis() -> None:
    seen = cloud(500, seed=0)
    known = Familiarity.fit(seen, cloud(200, seed=1))
    offset = (cloud(20, seed=2) - seen.mean(axis=0))[:, :3].astype(float)
    inverse = np.linalg.inv(np.cov(seen[:, :3].T))
    wanted = np.sqrt(np.einsum("ni,ij,nj->n", offset, inverse, offset))
    found = known.distances(cloud(20, seed=2))
    np.testing.assert_allclose(found, wanted, rtol=0.01, atol=0.01)  # kept in half precision


def test_familiarity_is_the_share_of_photos_that_are_odder() -> None:
    """Farther out, or flatter."""
    kept_back = cloud(200, seed=1)
    known = Familiarity.fit(cloud(500, seed=0), kept_back)
    far = np.full(3, 99.0)
    means = np.stack([known.mean, known.mean, far])
    pooled = np.concatenate([means, [[1.5], [0.5], [1.5]]], axis=1)
    assert known.of(pooled) == [pytest.approx(1, abs=0.1), 0, 0]
    assert known.of(np.full((1, 4), np.nan)) == [0]
    # Of photos of this very kind each share is there; but a flat one is no photo.
    flatter = np.sort(kept_back[:, -1])
    shares = {}
    for part in (0, 1, 100):
        kept_back[:, -1] = flatter[part]
        shares[part] = np.sort(known.of(kept_back))
    wanted = np.linspace(0, 1, 200)
    for part, most in ((0, 0.0), (1, 10 / 199), (100, 1.0)):
        np.testing.assert_allclose(shares[part], wanted.clip(max=most), rtol=0, atol=1e-3)
    assert auroc(np.array([0.7, 0.8]), np.array([0.7, 0.6])) == (0.5 + 3) / 4


def test_what_was_never_seen_is_less_familiar() -> None:
    """Of fewer photos than there are numbers in a grid, too."""
    chance = np.random.default_rng(0)
    spread = np.linspace(2, 0.01, 300)

    def drawn(count: int) -> np.ndarray:
        means = chance.normal(size=(count, 300)) * spread
        flat = np.ones((count, 1))  # none is flatter than another
        return np.concatenate([means, flat], axis=1).astype(np.float32)

    known = Familiarity.fit(drawn(100), drawn(50))
    alike, unlike = drawn(200), drawn(200) + 1
    farther = known.distances(alike)[:, None] < known.distances(drawn(200))
    assert farther.mean() == pytest.approx(0.5, abs=0.12)
    assert max(known.of(unlike)) < 0.05


def test_photos_that_are_all_the_same_have_no_width() -> None:
    known = Familiarity.fit(np.ones((100, 31)), np.ones((50, 31)))
    same, other = known.distances(np.stack([np.ones(31), np.zeros(31)])).tolist()
    assert same == 0 and 0 < other < float("inf")
