"""Captioned images, prepared or in COCO's format; an image with all its captions is one item."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from captioner.errors import DataError
from captioner.image import open_image
from captioner.transforms import Transform
from captioner.vocabulary import END, PAD, START, Tokenizer, Vocabulary, tokenize
from captioner_training.data.images import ImageStore, Member
from captioner_training.data.unprepared import unprepared
from captioner_training.prepare.coco_json import coco_images
from captioner_training.prepare.manifest import Manifest, is_prepared, is_unfinished
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.texts import read_json

__all__ = [
    "Augmentation",
    "Batch",
    "CaptionedImage",
    "ImageDataset",
    "collate",
    "encode_captions",
    "read_coco",
    "read_dataset",
]

_SIDED = re.compile(r"\b(left|right)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CaptionedImage:
    """An image and its captions."""

    name: str
    id: int | str
    store: ImageStore
    captions: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]  # the captions, tokenized

    @property
    def sided(self) -> bool:
        """Whether a caption tells left from right, so that a mirrored image would make it lie."""
        return any(_SIDED.search(caption) for caption in self.captions)


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
    """B images with up to K captions of up to T tokens, <start> first, padded with <pad>.

    images: pixels (B, 3, S, S) uint8, or cached grids (B, L, D); tokens: (B, K, T);
    positions: (B,), of the images in their list.
    """

    images: Tensor
    tokens: Tensor
    positions: Tensor


def read_dataset(
    folder: Path, *, split: str, tokenizer: Tokenizer = "words"
) -> list[CaptionedImage]:
    """Read a split of a data set that is one folder.

    The folder is a data set that `captioner prepare` made; or it holds captions_SPLIT.json in
    COCO's captions format, beside the images in SPLIT*.tar or in a folder SPLIT. `tokenizer` splits
    the captions into words.

    Raises:
        DataError: it is neither, it has no such split, or files are missing or damaged.

    """
    if is_unfinished(folder):
        raise DataError(f"{folder} is not finished: run the same `captioner prepare` again")
    if not is_prepared(folder):
        plain = folder / f"captions_{split}.json"
        if not plain.exists():
            raise DataError(unprepared(folder, split))
        return read_coco(plain, folder / f"{split}*", tokenizer=tokenizer)
    manifest = Manifest.load(folder)
    rows = list(manifest.rows(folder, split))
    shards = [folder / shard.file for shard in manifest.splits[split].shards]
    store = ImageStore.from_members(
        ((row.file_name, Member(shards[row.shard], row.offset, row.size)) for row in rows),
        pattern=folder,
        identity=manifest.identity,
    )
    return [
        CaptionedImage(
            name=row.file_name,
            id=row.id,
            store=store,
            captions=row.captions,
            words=_words(row.captions, tokenizer),
        )
        for row in rows
    ]


def _words(captions: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[str, ...], ...]:
    # Interned: COCO's six million words are thirty thousand different ones.
    return tuple(tuple(map(sys.intern, tokenize(text, tokenizer))) for text in captions)


def read_coco(
    captions: Path, images: Path | str, *, tokenizer: Tokenizer = "words"
) -> list[CaptionedImage]:
    """Read a data set in COCO's captions format.

    Args:
        captions: the json file with `images` and `annotations`.
        images: a folder or tar file (or a glob of them) that holds every `file_name`.
        tokenizer: how captions are split into words.

    Raises:
        DataError: a file is missing or not of that format; images without captions or files.

    """
    problems = Problems()
    found = coco_images(read_json(captions, problems), problems, name=str(captions))
    if not found:
        raise DataError(f"{captions} has no images: it is not in COCO's captions format")
    store = ImageStore(images)
    bare = [image.file_name for image in found if not image.captions]
    _refuse(captions, "images without a caption", bare)
    absent = [image.file_name for image in found if image.file_name not in store]
    _refuse(captions, f"images that are not in {images}", absent)
    return [
        CaptionedImage(
            name=image.file_name,
            id=image.id,
            store=store,
            captions=image.captions,
            words=_words(image.captions, tokenizer),
        )
        for image in found
    ]


def _refuse(captions: Path, problem: str, names: Sequence[str]) -> None:
    if names:
        raise DataError(f"{captions} has {problem}: {len(names)}, {names[0]} the first")


class ImageDataset(Dataset[Item]):
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
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Item:
        image = self.images[index]
        photo = open_image(image.store.read(image.name), at_least=self.transform.at_least)
        chance = random.Random(f"{self.seed}/{self.epoch}/{index}")
        cut = self.augmentation.crop
        if cut > 0:
            width, height = (side * (1 - cut * chance.random()) for side in photo.size)
            left = (photo.width - width) * chance.random()
            top = (photo.height - height) * chance.random()
            photo = photo.crop((int(left), int(top), round(left + width), round(top + height)))
        pixels = self.transform.pixels(photo)
        if self.augmentation.flip and chance.random() < 0.5 and not image.sided:
            pixels = pixels.flip(-1)
        return Item(pixels, index)


def collate(
    images: Tensor,
    captions: Sequence[Sequence[Sequence[int]]],
    *,
    maximum_length: int,
    positions: Sequence[int] = (),
) -> Batch:
    """Pad the captions of B images into tokens (B, K, T); a longer caption loses its tail.

    A caption that is cut has no <end>: the model must not learn to stop there.
    """
    rows = [[_framed(caption, maximum_length) for caption in each] for each in captions]
    count = max(len(each) for each in rows)
    length = max(len(row) for each in rows for row in each)
    tokens = torch.full((len(rows), count, length), PAD)
    for b, each in enumerate(rows):
        for k, row in enumerate(each):
            tokens[b, k, : len(row)] = torch.tensor(row)
    return Batch(images, tokens, torch.tensor(positions, dtype=torch.long))


def _framed(caption: Sequence[int], maximum_length: int) -> list[int]:
    if len(caption) > maximum_length:
        return [START, *caption[:maximum_length]]
    return [START, *caption, END]


def encode_captions(
    images: Sequence[CaptionedImage], vocabulary: Vocabulary
) -> list[list[list[int]]]:
    """Number the words of every caption of every image."""
    return [[vocabulary.encode(words) for words in image.words] for image in images]
