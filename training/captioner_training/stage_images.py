"""The images that a stage trains on: augmented pixels, or cached grids of a frozen encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from captioner.model.encoder import Encoder
from captioner.vision.transform import Transform
from captioner_training.data.batches import ImageSource
from captioner_training.data.grids import CachedGrids
from captioner_training.data.images import CaptionedImage
from captioner_training.data.pixels import Augmentation, ImageDataset, PixelSource
from captioner_training.distributed import Processes
from captioner_training.recipe import Recipe
from captioner_training.step import dtype_of


@dataclass(frozen=True, kw_only=True)
class StageImages:
    """Provides the training images of a run to its stages.

    Attributes:
        cache: the folder for grids.
    """

    recipe: Recipe
    images: list[CaptionedImage]
    encoder: Encoder
    cache: Path
    processes: Processes

    def stage(self, number: int) -> ImageSource:
        """Return the images of stage `number`, counted from 0."""
        if self.recipe.stages[number].fine_tune_from is not None:
            return self._pixels(number)
        grids = self.encode(self.images)
        return grids.resident(self.processes.device) or grids

    def encode(self, images: Sequence[CaptionedImage]) -> CachedGrids:
        """Return the grids of images: from the cache, or computed with the current encoder."""
        return CachedGrids.compute(
            self.encoder,
            images,
            Transform(self.recipe.transform),
            folder=self.cache,
            processes=self.processes,
            dtype=dtype_of(self.recipe, self.processes.device),
            workers=self.recipe.data.workers,
        )

    def _pixels(self, number: int) -> ImageSource:
        stage = self.recipe.stages[number]
        dataset = ImageDataset(
            self.images,
            Transform(self.recipe.transform),
            augmentation=Augmentation(flip=stage.flip, crop=stage.crop),
            seed=self.recipe.seed + 1000 * number,
        )
        workers, device = self.recipe.data.workers, self.processes.device
        return PixelSource(dataset, workers=workers, device=device)
