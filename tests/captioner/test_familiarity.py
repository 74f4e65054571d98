"""Familiarity: distances against Mahalanobis' formula, and shares of photos."""

from __future__ import annotations

import pytest
import torch

from captioner.familiarity import Familiarity
from captioner_training.evaluation.familiarity import auroc


def cloud(count: int, *, seed: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=chance) * torch.tensor([3.0, 1.0, 0.5]) + 2


def test_distances_are_mahalanobis() -> None:
    seen = cloud(500, seed=0)
    known = Familiarity.fit(seen, cloud(200, seed=1))
    offset = (cloud(20, seed=2) - seen.mean(dim=0)).double()
    inverse = torch.linalg.inv(torch.cov(seen.double().T))
    wanted = torch.einsum("ni,ij,nj->n", offset, inverse, offset).sqrt()
    found = known.distances(cloud(20, seed=2)).double()
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01)  # kept in half precision


def test_familiarity_is_the_share_of_photos_farther_out() -> None:
    kept_back = cloud(200, seed=1)
    known = Familiarity.fit(cloud(500, seed=0), kept_back)
    middle, far = known.of(torch.stack([known.mean.float(), torch.full((3,), 99.0)]))
    assert middle == pytest.approx(1, abs=0.01) and far == 0
    assert known.of(torch.full((1, 3), torch.nan)) == [0]
    shares = torch.tensor(known.of(kept_back))  # of photos of this very kind
    torch.testing.assert_close(shares.sort().values, torch.linspace(0, 1, 200), rtol=0, atol=1e-4)
    assert auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])) == (0.5 + 3) / 4


def test_what_was_never_seen_is_less_familiar() -> None:
    """Of fewer photos than there are numbers in a grid, too."""
    chance = torch.Generator().manual_seed(0)
    spread = torch.linspace(2, 0.01, 300)

    def drawn(count: int) -> torch.Tensor:
        return torch.randn(count, 300, generator=chance) * spread

    known = Familiarity.fit(drawn(100), drawn(50))
    alike, unlike = drawn(200), drawn(200) + 1
    shares = torch.tensor(known.of(alike))
    assert shares.mean().item() == pytest.approx(0.5, abs=0.12)
    assert max(known.of(unlike)) < 0.05


def test_photos_that_are_all_the_same_have_no_width() -> None:
    known = Familiarity.fit(torch.ones(100, 30), torch.ones(50, 30))
    same, other = known.distances(torch.stack([torch.ones(30), torch.zeros(30)])).tolist()
    assert same == 0 and 0 < other < float("inf")
