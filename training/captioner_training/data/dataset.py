"""Captioned images as they are trained on; an image with all its captions is one item."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from captioner.vision.transform import Transform
from captioner.vocabulary import END, PAD, Vocabulary
from captioner_training.data.images import CaptionedImage

__all__ = [
    "Augmentation",
    "Batch",
    "ImageDataset",
    "Item",
    "ItemDataset",
    "NumberedCaptions",
    "collate",
    "encode_captions",
    "starts_of",
]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How images vary from epoch to epoch."""

    flip: bool = False  # mirror every second image, but none whose captions say left or right
    crop: float = 0.0  # the largest share of a side that a random crop cuts away


class Item(NamedTuple):
    """An image of a list.

    image: pixels (3, S, S) uint8, or a cached grid (L, D); position: in the list.
    """

    image: Tensor
    position: int


class Batch(NamedTuple):
    """B images with up to K captions of up to T tokens, what starts them first, padded with <pad>.

    images: pixels (B, 3, S, S) uint8, or cached grids (B, L, D); tokens: (B, K, T);
    positions: (B,), of the images in their list.
    """

    images: Tensor
    tokens: Tensor
    positions: Tensor


class ItemDataset(Dataset[Item], ABC):
    """Images of a list, by their positions."""

    epoch: int = 0  # what varies from epoch to epoch follows it

    @abstractmethod
    def __len__(self) -> int: ...


class ImageDataset(ItemDataset):
    """Squares of pixels, decoded and augmented in the loader's worker processes.

    The augmentation of an image depends on (seed, epoch, index) alone: neither on the order of
    the epoch nor on the number of workers.
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

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Item:
        image = self.images[index]
        photo = image.open(at_least=self.transform.at_least)
        chance = random.Random(f"{self.seed}/{self.epoch}/{index}")
        cut = self.augmentation.crop
        if cut > 0:
            width, height = (side * (1 - cut * chance.random()) for side in photo.size)
            left = int(x := (photo.width - width) * chance.random())
            top = int(y := (photo.height - height) * chance.random())
            right, bottom = max(left + 1, round(x + width)), max(top + 1, round(y + height))
            photo = photo.crop((left, top, right, bottom))
        pixels = self.transform.pixels(photo)
        if self.augmentation.flip and chance.random() < 0.5 and not image.sided:
            pixels = pixels.flip(-1)
        return Item(pixels, index)


def collate(
    images: Tensor,
    captions: Sequence[Sequence[Sequence[int]]],
    *,
    starts: Sequence[int],
    maximum_length: int,
    positions: Sequence[int] = (),
) -> Batch:
    """Pad the captions of B images into tokens (B, K, T); a longer caption loses its tail.

    Each begins with the token that `starts` has for its image. One that is cut has no <end>: the
    model must not learn to stop there.
    """
    rows = [
        [_framed(caption, start, maximum_length) for caption in each]
        for each, start in zip(captions, starts, strict=True)
    ]
    count = max(len(each) for each in rows)
    length = max(len(row) for each in rows for row in each)
    tokens = torch.full((len(rows), count, length), PAD)
    for b, each in enumerate(rows):
        for k, row in enumerate(each):
            tokens[b, k, : len(row)] = torch.tensor(row)
    return Batch(images, tokens, torch.tensor(positions, dtype=torch.long))


def _framed(caption: Sequence[int], start: int, maximum_length: int) -> list[int]:
    if len(caption) > maximum_length:
        return [start, *caption[:maximum_length]]
    return [start, *caption, END]


def starts_of(images: Sequence[CaptionedImage], vocabulary: Vocabulary) -> list[int]:
    """Number the token that each image's captions begin with; a style unknown begins as usual."""
    starts = {style: vocabulary.start(style) for style in ("", *vocabulary.styles)}
    return [starts.get(image.style, starts[""]) for image in images]


class NumberedCaptions(Sequence[Sequence[Sequence[int]]]):
    """The captions of images as numbers of words, in three arrays.

    Lists of COCO's 600,000 captions would be copied, bit by bit, into each worker that reads them.
    """

    def __init__(self, images: Iterable[Iterable[Sequence[int]]]) -> None:
        tokens, ends, images_end = array("i"), array("q", [0]), array("q", [0])
        for captions in images:
            for caption in captions:
                tokens.extend(caption)
                ends.append(len(tokens))
            images_end.append(len(ends) - 1)
        self._tokens, self._ends, self._images = tokens, ends, images_end

    def __len__(self) -> int:
        return len(self._images) - 1

    def __getitem__(self, index: Any) -> Any:
        """Give the captions of an image."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        bounds = self._ends[self._images[index] : self._images[index + 1] + 1]
        return [self._tokens[begin:end].tolist() for begin, end in pairwise(bounds)]


def encode_captions(images: Iterable[CaptionedImage], vocabulary: Vocabulary) -> NumberedCaptions:
    """Number the words of every caption of every image."""
    return NumberedCaptions(map(vocabulary.encode, image.words) for image in images)
