"""One stage of a run: what it learns from, and how it takes a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from captioner.errors import DataError
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.data.batches import StageBatches
from captioner_training.data.corpus import Corpus
from captioner_training.data.dataset import Augmentation, ImageDataset, ItemDataset
from captioner_training.data.grids import CachedGrids, GridDataset
from captioner_training.data.images import CaptionedImage
from captioner_training.distributed import Processes
from captioner_training.evaluation.boxes import BoxedObject, check_boxes
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.losses.supervision import SupervisedAttention
from captioner_training.precision import dtype_of
from captioner_training.recipe import Recipe, resolve
from captioner_training.state import TrainState
from captioner_training.step import TrainStep

__all__ = ["StageRun", "read_supervision"]


class StageRun:
    """The parts of the stage that a run is at; its encoder is thawed or frozen, its images encoded.

    Args:
        recipe: of the run.
        state: of the run; its stage begins here.
        corpus: of the run.
        cache: the folder of the grids.
        processes: of the run.
        supervision: where words are to look, for a stage that asks for it.

    Attributes:
        config: the stage, as the recipe has it.
        batches: of its epochs.
        step: takes its steps.
        validation_grids: of the validation split, where the encoder is frozen.

    """

    def __init__(
        self, recipe: Recipe, state: TrainState, *, corpus: Corpus, cache: Path,
        processes: Processes, supervision: SupervisedAttention | None = None,
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
                Transform(_sized(recipe.transform, self.config.size)),
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
            vocabulary=corpus.vocabulary,
            transform=self.transform,
            processes=processes,
            self_critical=self._critic(corpus),
            supervision=supervision if self.config.attention_supervision > 0 else None,
        )

    def _encode(self, images: list[CaptionedImage]) -> CachedGrids:
        return CachedGrids.compute(
            self._state.model.encoder,
            images,
            self.transform,
            folder=self._cache,
            processes=self.processes,
            dtype=dtype_of(self.recipe, self.processes.device),
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


def _sized(transform: TransformConfig, size: int | None) -> TransformConfig:
    """Frame photos alike, in squares of so many pixels a side; None: as they are."""
    if size is None:
        return transform
    resize = transform.resize and max(size, round(transform.resize * size / transform.size))
    return replace(transform, size=size, resize=resize)


def read_supervision(recipe: Recipe, corpus: Corpus) -> SupervisedAttention | None:
    """Read the boxes, where a stage of the recipe has words that are told where to look.

    Raises:
        DataError: they cannot be read, belong to other images, or are of nothing that is named.

    """
    if not any(stage.attention_supervision > 0 for stage in recipe.stages):
        return None
    data, ids = recipe.data, {image.id for image in corpus.train}
    if len(ids) < len(corpus.train):
        raise DataError(
            "data.boxes names images by their ids, and two training images have the same: "
            "train on one data set, or give its images ids of their own"
        )
    boxes: dict[int | str, list[BoxedObject]] = {}
    for path in data.boxes:
        found = check_boxes(resolve(data.root, path), Transform(recipe.transform), ids=ids)
        for image, objects in found.items():
            boxes.setdefault(image, []).extend(objects)
    side = recipe.transform.size // recipe.encoder.stride
    supervision = SupervisedAttention(corpus.train, boxes, rows=side, columns=side)
    if supervision.words == 0:
        raise DataError(
            f"no word of the training captions names an object of {', '.join(data.boxes)}: "
            "attention_supervision has nothing to learn from; leave it out, or give the "
            "categories the names that COCO gives them"
        )
    return supervision
