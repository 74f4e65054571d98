"""Training images as pixels, augmented differently in every epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from captioner.vision.transform import Transform
from captioner_training.data.images import CaptionedImage

__all__ = ["Augmentation", "Batch", "ImageDataset", "View"]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random changes of images."""

    flip: bool = False  # mirror half of the images, except those with left or right in a caption
    crop: float = 0.0  # largest share of a side that a random crop removes


class View(NamedTuple):
    """The crop of an image in one epoch, in fractions of its width and height."""

    left: float
    top: float
    width: float
    height: float
    mirrored: bool


class Batch(NamedTuple):
    """B images with up to K captions of up to T tokens.

    images: pixels (B, 3, S, S) uint8, or grids (B, L, D) float16.
    tokens: (B, K, T + 1) int64, start token first, padded with <pad>.
    positions: the positions of the images in the training data.
    """

    images: Tensor
    tokens: Tensor
    positions: Sequence[int]


class ImageDataset(Dataset[Tensor]):
    """Pixels (3, S, S) uint8, decoded and augmented in the loader's workers.

    The augmentation of an image depends only on (seed, epoch, index).
    """

    def __init__(
        self,
        images: Sequence[CaptionedImage],
        transform: Transform,
        *,
        augmentation: Augmentation | None = None,
        seed: int = 0,
    ) -> None:
        self.images = images
        self.transform = transform
        self.augmentation = augmentation or Augmentation()
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        view, photo = self.view(index), self.images[index].open(at_least=self.transform.at_least)
        if self.augmentation.crop > 0:
            x, y = view.left * photo.width, view.top * photo.height
            right, bottom = x + view.width * photo.width, y + view.height * photo.height
            left, top = int(x), int(y)
            box = (left, top, max(left + 1, round(right)), max(top + 1, round(bottom)))
            photo = photo.crop(box)
        pixels = self.transform.pixels(photo)
        return pixels.flip(-1) if view.mirrored else pixels

    def view(self, index: int) -> View:
        """Draw the crop of an image in this epoch."""
        chance, crop = random.Random(f"{self.seed}/{self.epoch}/{index}"), self.augmentation.crop
        left, top, width, height = 0.0, 0.0, 1.0, 1.0
        if crop > 0:
            width, height = (1 - crop * chance.random() for _ in range(2))
            left, top = ((1 - side) * chance.random() for side in (width, height))
        mirrored = self.augmentation.flip and chance.random() < 0.5 and not self.images[index].sided
        return View(left, top, width, height, mirrored)
