"""Batches of images whose captions are alike in number and length, in a new order each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from captioner.errors import ConfigError

__all__ = ["BucketSampler"]

_POOL = 24  # batches that are sorted together: enough to save padding, few enough to stay random


class BucketSampler(Sampler[list[int]]):
    """Yields the indices of each part of each batch, as far as they are this process's own.

    Images are shuffled, sorted by shape within pools of batches, and the batches shuffled again:
    padding shrinks, yet an image has other company in every epoch. All batches are of the same
    size, give or take one image. A batch is the same whatever the number of processes and parts.

    Args:
        shapes: of each image: its number of captions and the length of the longest.
        batch_size: images a batch, at most, over all processes and parts.
        seed: with `epoch`, decides the order, whatever other random numbers are drawn.
        parts: of a batch, one after the other, for the accumulation of gradients.
        rank: of this process, of `world`.

    Raises:
        ConfigError: a batch has fewer images than processes times parts.

    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        *,
        batch_size: int,
        seed: int,
        parts: int = 1,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.shapes = shapes
        self.seed = seed
        self.parts, self.rank, self.world = parts, rank, world
        self.batches = -(-len(shapes) // batch_size)  # an epoch: one optimizer step each
        self.epoch = 0
        self.skip = 0  # batches of this epoch that an interrupted run has done already
        if len(shapes) // self.batches < world * parts:
            raise ConfigError(
                f"{len(shapes)} images in batches of {batch_size} are too few for {world} "
                f"processes and {parts} parts a batch: raise batch_size, or lower accumulate"
            )

    def __len__(self) -> int:
        return (self.batches - self.skip) * self.parts

    def __iter__(self) -> Iterator[list[int]]:
        count = len(self.shapes)
        generator = torch.Generator().manual_seed(self.seed * 100_003 + self.epoch)
        order = torch.randperm(count, generator=generator).tolist()
        ends = [count * batch // self.batches for batch in range(self.batches + 1)]
        for first in range(0, self.batches, _POOL):
            pool = slice(ends[first], ends[min(first + _POOL, self.batches)])
            order[pool] = sorted(order[pool], key=self.shapes.__getitem__)
        chosen = torch.randperm(self.batches, generator=generator).tolist()
        for batch in chosen[self.skip :]:
            whole = order[ends[batch] : ends[batch + 1]]
            for part in range(self.parts):
                yield whole[part * self.world + self.rank :: self.world * self.parts]
