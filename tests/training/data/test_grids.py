"""Cached grids: read from the file, and let go of."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.checkpoint import Checkpoint
from captioner.transforms import Transform
from captioner_training.data import grids as grids_module
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.machinery.processes import Processes

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


def test_a_picture_replaced_under_its_name_is_encoded_again(
    tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Files that are done are taken over; those of other pictures are not."""
    (tmp_path / "photos").mkdir()
    store = ImageStore(tmp_path / "photos")
    images = []
    for number in range(5):
        name = f"{number}.png"
        Image.new("RGB", (40, 40), (10 * number, 0, 200)).save(tmp_path / "photos" / name)
        images.append(CaptionedImage(name=name, id=number, store=store, captions=(), words=()))

    def compute() -> tuple[torch.Tensor, set[str]]:
        grids = CachedGrids.compute(
            tiny_checkpoint.model,
            images,
            Transform(tiny_checkpoint.transform),
            folder=tmp_path / "cache",
            processes=Processes(device=torch.device("cpu")),
            autocast=torch.autocast("cpu", enabled=False),
            workers=0,
        )
        return grids[range(5)], {path.name for path in (tmp_path / "cache").iterdir()}

    before, files = compute()
    assert (before.shape[0], len(files)) == (5, 3)  # two grids a file
    last = max(tmp_path / "cache" / name for name in files)
    last.unlink()  # as after an interruption
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    again, same = compute()
    assert torch.equal(again, before) and same == files
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    Image.new("RGB", (40, 40), "yellow").save(tmp_path / "photos" / "2.png")
    other, more = compute()
    assert len(more) == 6
    changed = [not torch.equal(one, two) for one, two in zip(before, other, strict=True)]
    assert changed == [False, False, True, False, False]


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "replaced" in request.node.name:
        monkeypatch.setattr(grids_module, "GRIDS_A_FILE", 2)
