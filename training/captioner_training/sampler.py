"""Batches of images whose captions are alike in number and length, in a new order each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

__all__ = ["BucketSampler"]

_POOL = 24  # batches that are sorted together: enough to save padding, few enough to stay random


class BucketSampler(Sampler[list[int]]):
    """Yields the indices of each batch.

    Images are shuffled, sorted by shape within pools of batches, and the batches shuffled again:
    padding shrinks, yet no image meets the same company twice.

    Args:
        shapes: of each image: its number of captions and the length of the longest.
        batch_size: images a batch; the last may have fewer.
        seed: with `epoch`, decides the order, whatever other random numbers are drawn.

    """

    def __init__(self, shapes: Sequence[tuple[int, int]], *, batch_size: int, seed: int) -> None:
        self.shapes = shapes
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return -(-len(self.shapes) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        order = torch.randperm(len(self.shapes), generator=generator).tolist()
        pool = self.batch_size * _POOL
        batches = []
        for start in range(0, len(order), pool):
            alike = sorted(order[start : start + pool], key=self.shapes.__getitem__)
            batches += [
                alike[at : at + self.batch_size] for at in range(0, len(alike), self.batch_size)
            ]
        for chosen in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[chosen]
