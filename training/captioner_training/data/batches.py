"""The batches of a stage: images or cached grids, with all their captions, bucketed by length."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch.utils.data import Sampler

from captioner.errors import ConfigError
from captioner_training.data.corpus import Corpus
from captioner_training.data.dataset import Batch, ItemDataset
from captioner_training.data.loader import make_loader
from captioner_training.distributed import Processes
from captioner_training.recipe import ANY_STYLE, Recipe

__all__ = ["BucketSampler", "StageBatches", "stage_sampler"]

_POOL = 24  # batches that are sorted together: enough to save padding, few enough to stay random


class BucketSampler(Sampler[list[int]]):
    """Yields the indices of each part of each batch, as far as they are this process's own.

    Images are shuffled, sorted by shape within pools of batches, and the batches shuffled again:
    padding shrinks, yet an image has other company in every epoch. All batches are of the same
    size, give or take one image. A batch is the same whatever the number of processes and parts.

    Args:
        shapes: of each image: its number of captions and the length of the longest.
        batch_size: images a batch, at most, over all processes and parts.
        seed: with `epoch`, decides the order.
        parts: of a batch, one after the other, for the accumulation of gradients.
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


def stage_sampler(
    recipe: Recipe, number: int, corpus: Corpus, processes: Processes
) -> BucketSampler:
    """Decide which images come together in the batches of a stage, counted from 0."""
    stage = recipe.stages[number]
    # Drawn captions have a length of their own: batches alike in the data's captions would only
    # pull the model towards long ones at one step and short ones at the next.
    alike = stage.self_critical is None
    captions = corpus.learned.captions
    return BucketSampler(
        [(len(each), max(map(len, each))) if alike else (0, 0) for each in captions],
        batch_size=stage.batch_size,
        seed=recipe.seed + 1000 * number,
        parts=stage.accumulate,
        rank=processes.rank,
        world=processes.world,
    )


class StageBatches:
    """The batches of a stage, numbered from 0, epoch by epoch.

    `dataset` has what the stage learns from of the corpus: the training images, their grids, or as
    many cells as there are captions; each process gets its share of every batch.
    """

    def __init__(
        self, recipe: Recipe, number: int, *, corpus: Corpus, dataset: ItemDataset,
        processes: Processes,
    ) -> None:  # fmt: skip
        self.recipe, self.stage = recipe, recipe.stages[number]
        self.dataset, self.device = dataset, processes.device
        self.corpus, self.learned = corpus, corpus.learned
        self.sampler = stage_sampler(recipe, number, corpus, processes)

    @property
    def steps(self) -> int:
        """Steps of the whole stage."""
        steps = self.stage.epochs * self.sampler.batches
        return steps if self.recipe.max_steps is None else min(steps, self.recipe.max_steps)

    def epoch(self, number: int, *, skip: int, most: int) -> Iterator[list[Batch]]:
        """Give the parts of each batch of an epoch, numbered from 0.

        `skip` batches are those that an interrupted run has done; a dry run ends after `most`.
        """
        self.sampler.epoch, self.sampler.skip = number, skip
        self.dataset.epoch = number
        loader = make_loader(
            self.dataset,
            self.sampler,
            self.learned.captions,
            starts=self._starts(number),
            maximum_length=self.recipe.data.maximum_length,
            workers=self.recipe.data.workers,
            device=self.device,
            seed=self.sampler.seed + number,
        )
        each = iter(loader)
        for _ in range(most):
            parts = list(islice(each, self.stage.accumulate))
            if not parts:
                return
            yield parts

    def _starts(self, epoch: int) -> list[int]:
        """Number what the captions of each item begin with: its style, or now and then `any`."""
        share, starts = self.recipe.data.any_style, self.learned.starts
        if share == 0:
            return starts
        anyones = self.corpus.vocabulary.start(ANY_STYLE)
        chance = random.Random(f"{self.sampler.seed}/{epoch}")
        return [anyones if chance.random() < share else start for start in starts]
