"""The batches of a stage: images or cached grids with all their captions, bucketed by length."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from captioner.errors import ConfigError
from captioner_training.data.captions import CaptionTable
from captioner_training.data.grids import CachedGrids
from captioner_training.data.pixels import ImageDataset, load_pixels
from captioner_training.distributed import Processes
from captioner_training.recipe import Recipe, Stage

_POOL = 24  # batches sorted together: more batches save padding, fewer are more random


class Batch(NamedTuple):
    """B images with up to K captions of up to T tokens.

    images: pixels (B, 3, S, S) uint8, or grids (B, L, D) float16.
    tokens: (B, K, T + 1) int64, start token first, padded with <pad>.
    positions: the positions of the images in the training data.
    """

    images: Tensor
    tokens: Tensor
    positions: Sequence[int]


class BucketSampler:
    """Assigns images to batches so that captions of similar length are together.

    Images are shuffled and sorted by shape within pools of batches; then the batches are shuffled.
    All batches have the same size, so a few images may occur twice in an epoch. The images of a
    batch do not depend on the number of processes and parts.

    Args:
        shapes: the number of captions of each image, and the length of the longest one.
        batch_size: largest number of images per batch, over all processes and parts.
        parts: number of parts of a batch, for gradient accumulation.
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
        self.batches = -(-len(shapes) // batch_size)  # steps per epoch
        self.size = -(-len(shapes) // self.batches)
        if self.size < world * parts:
            raise ConfigError(
                f"a batch has {self.size} of the {len(shapes)} images, too few for {world} "
                f"processes with {parts} parts each: raise batch_size or lower accumulate"
            )

    def order(self, epoch: int, *, skip: int = 0) -> list[list[int]]:
        """Return the image indexes of each part, batch by batch, after `skip` batches."""
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
    """Build the sampler of stage `number`, counted from 0."""
    stage = recipe.stages[number]
    # Self-critical stages do not sort by length: their captions are sampled, and a batch of only
    # long or only short captions would bias its step.
    shapes = captions.shapes
    return BucketSampler(
        shapes if stage.self_critical is None else [(0, 0)] * len(shapes),
        batch_size=stage.batch_size,
        seed=recipe.seed + 1000 * number,
        parts=stage.accumulate,
        rank=processes.rank,
        world=processes.world,
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StageBatches:
    """The batches of a stage of a recipe. Each process gets its share of every batch.

    photos: the training images.
    grids: the cached grids of a frozen encoder; None: the pixels of the photos are loaded.
    any_style: the start token of the style `any`; None if `data.any_style` is 0.
    """

    recipe: Recipe
    stage: Stage
    photos: ImageDataset
    grids: CachedGrids | None = None
    captions: CaptionTable
    sampler: BucketSampler
    any_style: int | None = None

    @property
    def steps(self) -> int:
        """Number of steps of the whole stage."""
        steps = self.stage.epochs * self.sampler.batches
        return steps if self.recipe.max_steps is None else min(steps, self.recipe.max_steps)

    def epoch(self, number: int, *, skip: int, max_batches: int) -> Iterator[list[Batch]]:
        """Yield the parts of each batch of an epoch, counted from 0.

        `skip` batches were taken before an interruption. A dry run may end inside an epoch.
        """
        order = self.sampler.order(number, skip=skip)[: max_batches * self.stage.accumulate]
        starts = self._starts(number)
        compiled = self.recipe.compiles(self.stage, steps=self.steps, device=self.captions.device)
        read = partial(self.captions.batch, few_shapes=compiled)
        with closing(self.load(order, epoch=number)) as loaded:
            parts = (
                Batch(images, read(positions, starts), positions)
                for positions, images in zip(order, loaded, strict=True)
            )
            while batch := list(islice(parts, self.stage.accumulate)):
                yield batch

    def load(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:
        """Yield the grids or pixels of each list of positions, in order."""
        if self.grids is not None:
            return self.grids.batches(order)
        self.photos.epoch, pinned = epoch, self.captions.device == "cuda"
        workers = self.recipe.data.workers
        return load_pixels(self.photos, workers=workers, batch_sampler=order, pin_memory=pinned)

    def _starts(self, epoch: int) -> Tensor | None:
        """Draw the start tokens of an epoch; None: those of the captions."""
        if self.any_style is None:
            return None
        chance, starts = random.Random(f"{self.sampler.seed}/{epoch}"), self.captions.starts
        drawn = [chance.random() < self.recipe.data.any_style for _ in range(len(starts))]
        return starts.masked_fill(torch.tensor(drawn, device=starts.device), self.any_style)
