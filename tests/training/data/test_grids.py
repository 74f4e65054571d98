"""Cached grids: read from the file, and let go of."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from captioner_training.data.grids import CachedGrids

SHAPE = (768, 49, 640)  # 48 MB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float16)
    values.tofile(tmp_path / "grids.f16")
    return tmp_path / "grids.f16"


def test_rows_are_those_of_the_file_in_any_order(path: Path) -> None:
    grids = CachedGrids([path], SHAPE)
    there = torch.from_numpy(np.fromfile(path, np.float16).reshape(SHAPE))
    order = torch.randperm(768, generator=torch.Generator().manual_seed(0)).tolist()
    for first in range(0, 768, 64):
        batch = order[first : first + 64]
        assert torch.equal(grids[batch], there[batch])
    again = pickle.loads(pickle.dumps(grids))  # what a spawned worker gets
    assert len(pickle.dumps(grids)) < 1000 and torch.equal(again[[767, 0]], there[[767, 0]])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="/proc/self/smaps is Linux's")
def test_an_epoch_leaves_no_page_mapped(path: Path) -> None:
    grids = CachedGrids([path], SHAPE)
    for index in torch.randperm(768, generator=torch.Generator().manual_seed(1)).tolist():
        grids[[index]]
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
    resident = next(line for line in lines[start:] if line.startswith("Rss:"))
    assert int(resident.split()[1]) < 1000  # kB; 48,000 of the file were read
