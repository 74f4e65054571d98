"""The batches of a stage: images or cached grids, with all their captions, bucketed by length."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from captioner.errors import ConfigError
from captioner_training.data.captions import CaptionTable
from captioner_training.data.dataset import Batch
from captioner_training.distributed import Processes
from captioner_training.recipe import Recipe

__all__ = ["BucketSampler", "ImageSource", "StageBatches", "stage_sampler"]

_POOL = 24  # batches that are sorted together: enough to save padding, few enough to stay random


class ImageSource(Protocol):
    """Loads images, or their grids, by their positions in the training data."""

    def batches(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:
        """Load a tensor for each list of positions, in this order."""


class BucketSampler:
    """Decides which images come together: the positions of each part of each batch.

    Images are shuffled, sorted by shape within pools of batches, and the batches shuffled again:
    padding shrinks, yet an image has other company in every epoch. All batches have one size: a few
    images come twice in an epoch if need be. A batch is the same whatever the number of processes
    and parts.

    Args:
        shapes: of each image: its number of captions and the length of the longest.
        batch_size: images per batch at most, over all processes and parts.
        seed: with the epoch, decides the order.
        parts: of a batch, one after the other, for gradient accumulation.
        rank: of this process, of `world`.

    Raises ConfigError: a batch has fewer images than processes times parts.
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
        self.batches = -(-len(shapes) // batch_size)  # per epoch: one optimizer step each
        self.size = -(-len(shapes) // self.batches)
        if self.size < world * parts:
            raise ConfigError(
                f"{len(shapes)} images in batches of {batch_size} are too few for {world} "
                f"processes and {parts} parts a batch: raise batch_size, or lower accumulate"
            )

    def order(self, epoch: int, *, skip: int = 0) -> list[list[int]]:
        """Return the positions of each part of the epoch's batches, without the first `skip`."""
        generator = torch.Generator().manual_seed(self.seed * 100_003 + epoch)
        order = torch.randperm(len(self.shapes), generator=generator).tolist()
        order += order[: self.batches * self.size - len(order)]
        step = _POOL * self.size
        for first in range(0, len(order), step):
            pool = slice(first, first + step)
            order[pool] = sorted(order[pool], key=self.shapes.__getitem__)
        chosen = torch.randperm(self.batches, generator=generator).tolist()
        return [
            order[batch * self.size : (batch + 1) * self.size][
                part * self.world + self.rank :: self.world * self.parts
            ]
            for batch in chosen[skip:]
            for part in range(self.parts)
        ]


def stage_sampler(
    recipe: Recipe, number: int, captions: CaptionTable, processes: Processes
) -> BucketSampler:
    """Make the sampler of a stage, counted from 0."""
    stage = recipe.stages[number]
    # Sampled captions have lengths of their own: batches alike in the data's captions would only
    # pull the model towards long ones at one step and short ones at the next.
    shapes = captions.shapes
    return BucketSampler(
        shapes if stage.self_critical is None else [(0, 0)] * len(shapes),
        batch_size=stage.batch_size,
        seed=recipe.seed + 1000 * number,
        parts=stage.accumulate,
        rank=processes.rank,
        world=processes.world,
    )


class StageBatches:
    """The batches of a stage, epoch by epoch; each process gets its share of every batch.

    Args:
        recipe: of the run.
        number: of the stage, from 0.
        images: the training images, or their grids.
        captions: of the training images.
        sampler: of the stage.
        default_start: the start token of `data.any_style`.
    """

    def __init__(
        self,
        recipe: Recipe,
        number: int,
        *,
        images: ImageSource,
        captions: CaptionTable,
        sampler: BucketSampler,
        default_start: int | None = None,
    ) -> None:
        self.recipe, self.stage = recipe, recipe.stages[number]
        self.images, self.captions, self.sampler = images, captions, sampler
        self.default_start = default_start

    @property
    def steps(self) -> int:
        """Steps of the whole stage."""
        steps = self.stage.epochs * self.sampler.batches
        return steps if self.recipe.max_steps is None else min(steps, self.recipe.max_steps)

    def epoch(self, number: int, *, skip: int, most: int) -> Iterator[list[Batch]]:
        """Yield the parts of each batch of an epoch, counted from 0.

        `skip` batches were done before an interruption; a dry run ends after `most`.
        """
        order = self.sampler.order(number, skip=skip)[: most * self.stage.accumulate]
        starts = self._starts(number)
        with closing(self.images.batches(order, epoch=number)) as loaded:
            parts = (
                Batch(images, self.captions.batch(positions, starts), positions)
                for positions, images in zip(order, loaded, strict=True)
            )
            while batch := list(islice(parts, self.stage.accumulate)):
                yield batch

    def _starts(self, epoch: int) -> Tensor | None:
        """Return the start tokens of an epoch where a share of them is drawn (`any_style`)."""
        if self.default_start is None:
            return None
        chance = random.Random(f"{self.sampler.seed}/{epoch}")
        count, share = len(self.captions.counts), self.recipe.data.any_style
        drawn = torch.tensor([chance.random() < share for _ in range(count)])
        return self.captions.starts.masked_fill(
            drawn.to(self.captions.starts.device), self.default_start
        )
