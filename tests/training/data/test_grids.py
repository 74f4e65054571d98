"""Cached grids: reading them from files, and invalidation."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from captioner.checkpoint import Checkpoint
from captioner.errors import DataError
from captioner.photos.transform import Transform
from captioner_training.data import grids as grids_module
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage, ImageStore
from captioner_training.distributed import Processes


def test_rows_are_those_of_the_file_in_any_order(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((96, 49, 16)).astype(np.float16)
    values.tofile(tmp_path / "grids.f16")
    grids, there = CachedGrids([tmp_path / "grids.f16"], (96, 49, 16)), torch.from_numpy(values)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(0)).tolist()
    parts = [order[:60], order[60:]]
    for batch, read in zip(parts, grids.batches(parts), strict=True):
        assert torch.equal(grids[batch], there[batch]) and torch.equal(read, there[batch])


@pytest.fixture
def images(tmp_path: Path) -> list[CaptionedImage]:
    (tmp_path / "photos").mkdir()
    store = ImageStore(tmp_path / "photos")
    for number in range(5):
        picture = Image.effect_noise((40, 40), 30 * (1 + number)).convert("RGB")
        picture.save(tmp_path / "photos" / f"{number}.png")
    return [
        CaptionedImage(name=f"{number}.png", id=number, store=store, captions=(), words=())
        for number in range(5)
    ]


@pytest.fixture
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make cache files of two images each."""
    monkeypatch.setattr(grids_module, "IMAGES_A_FILE", 2)
    monkeypatch.setattr(grids_module, "_BATCH", 2)


def computed(
    checkpoint: Checkpoint, images: list[CaptionedImage], cache: Path, dtype: torch.dtype,
    *, processes: Processes | None = None,
) -> torch.Tensor:  # fmt: skip
    grids = CachedGrids.compute(
        checkpoint.model.encoder,
        images,
        Transform(checkpoint.transform),
        folder=cache,
        processes=processes or Processes(device=torch.device("cpu")),
        dtype=dtype,
        workers=0,
    )
    return grids[range(5)]


def test_grids_are_those_of_the_encoder_which_stays_as_it_is(
    tiny_checkpoint: Checkpoint, images: list[CaptionedImage], tmp_path: Path
) -> None:
    model, transform = tiny_checkpoint.model, Transform(tiny_checkpoint.transform)
    pixels = [Image.open(tmp_path / "photos" / one.name) for one in images]
    photos = torch.stack([transform.normalize(transform.pixels(photo)) for photo in pixels])
    norms = [one for one in model.modules() if isinstance(one, nn.BatchNorm2d)]
    for norm in norms:  # with random statistics there is nothing left of a photo at the end
        norm.train()
        norm.momentum = None
    model.encoder(photos)
    model.eval().encoder.fine_tune(from_stage=2)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    trained = [one.requires_grad for one in model.parameters()]
    with torch.inference_mode():
        wanted = model.encode(photos).features
    spread = float(wanted.std())
    assert spread > 0.01
    model.train()
    found = computed(tiny_checkpoint, images, tmp_path / "cache", torch.float32)
    torch.testing.assert_close(found.float(), wanted, rtol=2e-3, atol=2e-3 * spread)
    assert [one.requires_grad for one in model.parameters()] == trained and model.training
    for name, one in model.state_dict().items():
        assert torch.equal(one, before[name])
    coarse = computed(tiny_checkpoint, images, tmp_path / "cache", torch.bfloat16)
    assert not torch.equal(coarse, found)  # not taken for the others
    assert float((coarse.float() - wanted).square().mean().sqrt()) < 0.1 * spread


@pytest.mark.usefixtures("short_files")
def test_a_picture_replaced_under_its_name_is_encoded_again(
    tiny_checkpoint: Checkpoint, images: list[CaptionedImage], tmp_path: Path
) -> None:
    """Files that are done are taken over; those of other pictures are not."""

    def compute() -> tuple[torch.Tensor, set[str]]:
        grids = computed(tiny_checkpoint, images, tmp_path / "cache", torch.float32)
        return grids, {path.name for path in (tmp_path / "cache").iterdir()}

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


def test_other_statistics_of_a_norm_and_another_transform_are_other_caches(
    tiny_checkpoint: Checkpoint, images: list[CaptionedImage], tmp_path: Path
) -> None:
    before = computed(tiny_checkpoint, images, tmp_path / "cache", torch.float32)
    transform = replace(tiny_checkpoint.transform, mean=(0.1, 0.2, 0.3))
    other = replace(tiny_checkpoint, transform=transform)
    after = computed(other, images, tmp_path / "cache", torch.float32)
    assert not torch.allclose(before, after)
    norms = [part for part in tiny_checkpoint.model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert norms[0].running_mean is not None
    norms[0].running_mean.add_(1)  # a buffer: no parameter has changed
    after = computed(tiny_checkpoint, images, tmp_path / "cache", torch.float32)
    assert not torch.allclose(before, after)


@dataclass(frozen=True, kw_only=True)
class Rank(Processes):
    """One of two processes that run one after the other; `sent` is what rank 0 broadcast."""

    world: int = 2
    sent: list[Any] = field(default_factory=list)

    def broadcast(self, value: Any) -> Any:
        if self.main:
            self.sent.append(value)
            return value
        return self.sent.pop(0)

    def wait(self) -> None:
        """Return at once: the other process is not there."""


@pytest.mark.usefixtures("short_files")
def test_each_process_encodes_a_part_of_the_files(
    tiny_checkpoint: Checkpoint, images: list[CaptionedImage], tmp_path: Path
) -> None:
    cpu, sent = torch.device("cpu"), list[Any]()
    arguments = tiny_checkpoint, images, tmp_path / "cache", torch.float32
    with pytest.raises(DataError, match="cannot be read"):  # the other process has not begun
        computed(*arguments, processes=Rank(device=cpu, sent=sent))
    first = {*(tmp_path / "cache").iterdir()}
    assert len(first) == 2  # of three
    found = computed(*arguments, processes=Rank(device=cpu, rank=1, sent=sent))
    assert len({*(tmp_path / "cache").iterdir()} - first) == 1
    assert torch.equal(found, computed(*arguments))


@pytest.mark.usefixtures("short_files")
def test_errors_of_photos_and_files_are_explained(
    tiny_checkpoint: Checkpoint, images: list[CaptionedImage], tmp_path: Path
) -> None:
    cache, photo = tmp_path / "cache", tmp_path / "photos" / images[3].name
    arguments = tiny_checkpoint, images, cache, torch.float32
    whole, times = photo.read_bytes(), photo.stat()
    photo.write_bytes(whole[:60])
    with pytest.raises(DataError, match=rf"photo {photo.name} in .* cannot be used"):
        computed(*arguments)
    assert len([*cache.iterdir()]) == 1  # no part of the second file
    photo.write_bytes(whole)
    os.utime(photo, ns=(times.st_atime_ns, times.st_mtime_ns))
    before = {*cache.iterdir()}  # of the photo as it was
    computed(*arguments)
    last = max({*cache.iterdir()} - before)
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{last.name} is truncated: delete it and run"):
        computed(*arguments)
    last.unlink()
    grids = CachedGrids([last], (1, 1, 1))
    with pytest.raises(DataError, match=rf"{last.name} cannot be read \(No such file"):
        list(grids.batches([[0]]))
