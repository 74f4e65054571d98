"""Where the batches of a stage come from."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import torch
from torch.utils.data import DataLoader

from captioner.cores import cores
from captioner.transforms import Transform
from captioner_training.data.dataset import (
    Batch,
    ImageDataset,
    Item,
    ItemDataset,
    collate,
)
from captioner_training.data.images import CaptionedImage
from captioner_training.data.sampler import BucketSampler

__all__ = ["make_loader", "make_split_loader"]


class _Collate:
    """Puts the images and all their captions into one batch; travels to the workers."""

    def __init__(
        self,
        captions: Sequence[Sequence[Sequence[int]]],
        starts: Sequence[int],
        maximum_length: int,
    ) -> None:
        self.captions, self.starts = captions, starts
        self.maximum_length = maximum_length

    def __call__(self, items: Sequence[Item]) -> Batch:
        positions = [item.position for item in items]
        return collate(
            torch.stack([item.image for item in items]),
            [self.captions[position] for position in positions],
            starts=[self.starts[position] for position in positions],
            maximum_length=self.maximum_length,
            positions=positions,
        )


def make_loader(
    dataset: ItemDataset,
    sampler: BucketSampler,
    captions: Sequence[Sequence[Sequence[int]]],
    *,
    starts: Sequence[int],
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
        collate_fn=_Collate(captions, starts, maximum_length),
        pin_memory=device.type == "cuda",
        generator=torch.Generator().manual_seed(sampler.seed + sampler.epoch),
        worker_init_fn=_leave_interrupts,
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
        worker_init_fn=_leave_interrupts,
    )


def _leave_interrupts(_: int) -> None:
    """Leave Ctrl-C to the main process, which asks for the rest of its step first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
