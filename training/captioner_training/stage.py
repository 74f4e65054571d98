"""One stage of a run: what it learns from, and how it takes a step."""

from __future__ import annotations

from pathlib import Path

from captioner.errors import DataError
from captioner.transforms import Transform
from captioner_training.data.batches import StageBatches
from captioner_training.data.corpus import Corpus
from captioner_training.data.dataset import Augmentation, ImageDataset, ItemDataset
from captioner_training.data.grids import CachedGrids, GridDataset
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.boxes import BoxedObject, check_boxes, read_boxes
from captioner_training.machinery.processes import Processes
from captioner_training.objectives.self_critical import SelfCriticalCaptions
from captioner_training.objectives.supervision import SupervisedAttention
from captioner_training.recipe import Recipe, resolve
from captioner_training.state import TrainState
from captioner_training.step import TrainStep, autocast_of

__all__ = ["StageRun"]


class StageRun:
    """The parts of the stage that a run is at; its encoder is thawed or frozen, its images encoded.

    Args:
        recipe: of the run.
        state: of the run; its stage begins here.
        corpus: of the run.
        cache: the folder of the grids.
        processes: of the run.

    Attributes:
        config: the stage, as the recipe has it.
        batches: of its epochs.
        step: takes its steps.
        validation_grids: of the validation split, where the encoder is frozen.

    """

    def __init__(
        self, recipe: Recipe, state: TrainState, *, corpus: Corpus, cache: Path,
        processes: Processes,
    ) -> None:  # fmt: skip
        number = state.progress.stage
        self.recipe, self.config, self.processes = recipe, recipe.stages[number], processes
        self.transform = Transform(recipe.transform)
        self._state, self._cache = state, cache
        state.model.encoder.fine_tune(from_stage=self.config.fine_tune_from)
        self.validation_grids: CachedGrids | None = None
        dataset: ItemDataset
        if self.config.fine_tune_from is None:
            dataset = GridDataset(self._encode(corpus.train))
            self.validation_grids = self._encode(corpus.validation)
        else:
            dataset = ImageDataset(
                corpus.train,
                self.transform,
                augmentation=Augmentation(flip=self.config.flip, crop=self.config.crop),
                seed=recipe.seed + 1000 * number,
            )
        self.batches = StageBatches(
            recipe, number, corpus=corpus, dataset=dataset, processes=processes
        )
        state.begin_stage(recipe, self.config, steps=self.batches.steps)
        self.step = TrainStep(
            state,
            recipe,
            self.config,
            transform=self.transform,
            processes=processes,
            self_critical=self._critic(corpus),
            supervision=self._supervision(corpus),
        )

    def _encode(self, images: list[CaptionedImage]) -> CachedGrids:
        return CachedGrids.compute(
            self._state.model,
            images,
            self.transform,
            folder=self._cache,
            processes=self.processes,
            autocast=autocast_of(self.recipe, self.processes.device),
            workers=self.recipe.data.workers,
        )

    def _critic(self, corpus: Corpus) -> SelfCriticalCaptions | None:
        if self.config.self_critical is None:
            return None
        return SelfCriticalCaptions(
            self.config.self_critical,
            vocabulary=corpus.vocabulary,
            references=[image.words for image in corpus.train],
            maximum_length=self.recipe.data.maximum_length,
        )

    def _supervision(self, corpus: Corpus) -> SupervisedAttention | None:
        """Read the boxes of a stage whose words are told where to look."""
        if self.config.attention_supervision == 0:
            return None
        data, ids = self.recipe.data, {image.id for image in corpus.train}
        if len(ids) < len(corpus.train):
            raise DataError(
                "data.boxes names images by their ids, and two training images have the same: "
                "train on one data set, or give its images ids of their own"
            )
        boxes: dict[int | str, list[BoxedObject]] = {}
        for path in data.boxes:
            check_boxes(resolve(data.root, path), self.transform, ids=ids)
            boxes |= read_boxes(resolve(data.root, path), self.transform)
        side = self.transform.config.size // self.recipe.encoder.stride
        return SupervisedAttention(corpus.train, boxes, rows=side, columns=side)
