"""Where the batches of a stage come from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.data import DataLoader, Dataset

from captioner.cores import cores
from captioner.transforms import Transform
from captioner_training.data.dataset import Batch, CaptionedImage, ImageDataset, Item, collate
from captioner_training.data.grids import CachedGrids
from captioner_training.data.sampler import BucketSampler

__all__ = ["GridDataset", "make_loader", "make_split_loader"]


class GridDataset(Dataset[Item]):
    """Cached grids (L, D), one an image."""

    def __init__(self, grids: CachedGrids, count: int) -> None:
        self.grids = grids
        self.count = count
        self.epoch = 0  # as ImageDataset has it; a grid is the same in every epoch

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Item:
        return Item(self.grids[[index]][0], index)


class _Collate:
    """Puts the images and all their captions into one batch; travels to the workers."""

    def __init__(self, captions: Sequence[Sequence[Sequence[int]]], maximum_length: int) -> None:
        self.captions = captions
        self.maximum_length = maximum_length

    def __call__(self, items: Sequence[Item]) -> Batch:
        positions = [item.position for item in items]
        return collate(
            torch.stack([item.image for item in items]),
            [self.captions[position] for position in positions],
            maximum_length=self.maximum_length,
            positions=positions,
        )


def make_loader(
    dataset: ImageDataset | GridDataset,
    sampler: BucketSampler,
    captions: Sequence[Sequence[Sequence[int]]],
    *,
    maximum_length: int,
    workers: int,
    device: torch.device,
) -> DataLoader[Item]:
    """Load the batches of the sampler's epoch, in its order whatever the number of workers.

    The loader draws from a generator of its own, so that looking at data never moves the random
    numbers of the training.
    """
    dataset.epoch = sampler.epoch
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=min(workers, cores()),
        collate_fn=_Collate(captions, maximum_length),
        pin_memory=device.type == "cuda",
        generator=torch.Generator().manual_seed(sampler.seed + sampler.epoch),
    )


def make_split_loader(
    images: Sequence[CaptionedImage], transform: Transform, *, workers: int, batch_size: int
) -> DataLoader[Item]:
    """Load the squares of a split in its order, with their positions; for looking, not learning."""
    return DataLoader(
        ImageDataset(images, transform),
        batch_size=batch_size,
        num_workers=min(workers, cores()),
        generator=torch.Generator(),  # of its own: see make_loader
    )
