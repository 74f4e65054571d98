"""The batches of a stage: images or cached grids, with all their captions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from captioner_training.data.corpus import Corpus
from captioner_training.data.dataset import Batch, ItemDataset
from captioner_training.data.loader import make_loader
from captioner_training.data.sampler import BucketSampler
from captioner_training.distributed import Processes
from captioner_training.recipe import ANY_STYLE, Recipe

__all__ = ["StageBatches", "stage_sampler"]


def stage_sampler(
    recipe: Recipe, number: int, captions: list[list[list[int]]], processes: Processes
) -> BucketSampler:
    """Decide which images come together in the batches of a stage, counted from 0.

    Raises:
        ConfigError: a batch has fewer images than processes times parts.

    """
    stage = recipe.stages[number]
    # Drawn captions have a length of their own: batches alike in the data's captions would only
    # pull the model towards long ones at one step and short ones at the next.
    alike = stage.self_critical is None
    return BucketSampler(
        [(len(each), max(map(len, each))) if alike else (0, 0) for each in captions],
        batch_size=stage.batch_size,
        seed=recipe.seed + 1000 * number,
        parts=stage.accumulate,
        rank=processes.rank,
        world=processes.world,
    )


class StageBatches:
    """The batches of a stage, epoch by epoch.

    Args:
        recipe: of the run.
        number: of the stage, from 0.
        corpus: of the run.
        dataset: the training images of the corpus, or their grids.
        processes: each of which gets its share of every batch.

    """

    def __init__(
        self, recipe: Recipe, number: int, *, corpus: Corpus, dataset: ItemDataset,
        processes: Processes,
    ) -> None:  # fmt: skip
        self.recipe, self.stage = recipe, recipe.stages[number]
        self.dataset, self.device = dataset, processes.device
        self.corpus, self.captions = corpus, corpus.train_numbers
        self.sampler = stage_sampler(recipe, number, self.captions, processes)

    @property
    def steps(self) -> int:
        """Steps of the whole stage."""
        steps = self.stage.epochs * self.sampler.batches
        return steps if self.recipe.max_steps is None else min(steps, self.recipe.max_steps)

    def epoch(self, number: int, *, skip: int, most: int) -> Iterator[list[Batch]]:
        """Give the parts of each batch of an epoch.

        Args:
            number: of the epoch, from 0.
            skip: batches that an interrupted run has done already.
            most: batches that are given; a dry run ends with them.

        """
        self.sampler.epoch, self.sampler.skip = number, skip
        loader = make_loader(
            self.dataset,
            self.sampler,
            self.captions,
            starts=self._starts(number),
            maximum_length=self.recipe.data.maximum_length,
            workers=self.recipe.data.workers,
            device=self.device,
        )
        each = iter(loader)
        for _ in range(most):
            parts = list(islice(each, self.stage.accumulate))
            if not parts:
                return
            yield parts

    def _starts(self, epoch: int) -> list[int]:
        """Number what the captions of each image begin with: its style, or now and then `any`."""
        share, starts = self.recipe.data.any_style, self.corpus.train_starts
        if share == 0:
            return starts
        anyones = self.corpus.vocabulary.start(ANY_STYLE)
        chance = random.Random(f"{self.sampler.seed}/{epoch}")
        return [anyones if chance.random() < share else start for start in starts]
