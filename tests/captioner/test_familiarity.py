"""Familiarity: distances against Mahalanobis' formula, and shares of photos."""

from __future__ import annotations

import pytest
import torch

from captioner.familiarity import Familiarity, pool
from captioner_training.evaluation.familiarity import auroc


def cloud(count: int, *, seed: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    means = torch.randn(count, 3, generator=chance) * torch.tensor([3.0, 1.0, 0.5]) + 2
    return torch.cat([means, torch.rand(count, 1, generator=chance) + 1], dim=1)


def test_a_grid_is_pooled_to_its_mean_and_how_much_its_cells_differ() -> None:
    features = torch.tensor([[[0.0, 5.0], [2.0, 5.0], [4.0, 2.0], [2.0, 8.0]]])
    deviations = 2.0**0.5, 4.5**0.5
    torch.testing.assert_close(pool(features), torch.tensor([[2.0, 5.0, sum(deviations) / 2]]))


def test_distances_are_mahalanobis() -> None:
    seen = cloud(500, seed=0)
    known = Familiarity.fit(seen, cloud(200, seed=1))
    offset = (cloud(20, seed=2) - seen.mean(dim=0)).double()[:, :3]
    inverse = torch.linalg.inv(torch.cov(seen[:, :3].double().T))
    wanted = torch.einsum("ni,ij,nj->n", offset, inverse, offset).sqrt()
    found = known.distances(cloud(20, seed=2)).double()
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01)  # kept in half precision


def test_familiarity_is_the_share_of_photos_that_are_odder() -> None:
    """Farther out, or flatter."""
    kept_back = cloud(200, seed=1)
    known = Familiarity.fit(cloud(500, seed=0), kept_back)
    far = torch.full((3,), 99.0)
    means = torch.stack([known.mean.float(), known.mean.float(), far])
    pooled = torch.cat([means, torch.tensor([[1.5], [0.5], [1.5]])], dim=1)
    assert known.of(pooled) == [pytest.approx(1, abs=0.1), 0, 0]
    assert known.of(torch.full((1, 4), torch.nan)) == [0]
    # Of photos of this very kind each share is there; but a flat one is no photo.
    flatter = kept_back[:, -1].sort().values
    shares = {}
    for part in (0, 1, 100):
        kept_back[:, -1] = flatter[part]
        shares[part] = torch.tensor(known.of(kept_back)).sort().values
    wanted = torch.linspace(0, 1, 200)
    for part, most in ((0, 0.0), (1, 10 / 199), (100, 1.0)):
        torch.testing.assert_close(shares[part], wanted.clamp(max=most), rtol=0, atol=1e-3)
    assert auroc(torch.tensor([0.7, 0.8]), torch.tensor([0.7, 0.6])) == (0.5 + 3) / 4


def test_what_was_never_seen_is_less_familiar() -> None:
    """Of fewer photos than there are numbers in a grid, too."""
    chance = torch.Generator().manual_seed(0)
    spread = torch.linspace(2, 0.01, 300)

    def drawn(count: int) -> torch.Tensor:
        means = torch.randn(count, 300, generator=chance) * spread
        return torch.cat([means, torch.ones(count, 1)], dim=1)  # none is flatter than another

    known = Familiarity.fit(drawn(100), drawn(50))
    alike, unlike = drawn(200), drawn(200) + 1
    farther = known.distances(alike)[:, None] < known.distances(drawn(200))
    assert farther.float().mean().item() == pytest.approx(0.5, abs=0.12)
    assert max(known.of(unlike)) < 0.05


def test_photos_that_are_all_the_same_have_no_width() -> None:
    known = Familiarity.fit(torch.ones(100, 31), torch.ones(50, 31))
    same, other = known.distances(torch.stack([torch.ones(31), torch.zeros(31)])).tolist()
    assert same == 0 and 0 < other < float("inf")
