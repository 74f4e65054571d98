"""Images as pixels, decoded and augmented in worker processes."""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from captioner.errors import CaptionerError
from captioner.inference.device import cores
from captioner.photos.transform import Transform
from captioner_training.data.images import CaptionedImage

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals that stop a run."""

Workers = int | Literal["auto"]
"""Number of processes that decode images; auto: the machine's cores per training process."""

# Active loaders. They are closed at exit, because their workers ignore SIGTERM.
_ACTIVE: WeakSet[Generator[Tensor]] = WeakSet()


@atexit.register
def _end_workers() -> None:
    for batches in list(_ACTIVE):
        batches.close()


@dataclass(eq=False, repr=False)
class ImageDataset:
    """Pixels (3, S, S) uint8, decoded and augmented in the loader's workers.

    The augmentation of an image depends only on (seed, epoch, index). `flip` mirrors half of the
    images, except those with left or right in a caption. `crop` is the largest share of a side that
    a random crop removes.
    """

    images: Sequence[CaptionedImage]
    transform: Transform
    _: KW_ONLY
    flip: bool = False
    crop: float = 0.0
    seed: int = 0
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        photo = self.images[index].open(at_least=self.transform.at_least)
        (left, top, width, height), mirrored = self.view(index)
        if self.crop > 0:
            x, y = left * photo.width, top * photo.height
            right, bottom = round(x + width * photo.width), round(y + height * photo.height)
            photo = photo.crop((int(x), int(y), max(int(x) + 1, right), max(int(y) + 1, bottom)))
        pixels = self.transform.pixels(photo)
        return pixels.flip(-1) if mirrored else pixels

    def view(self, index: int) -> tuple[tuple[float, float, float, float], bool]:
        """Draw the crop of an image in this epoch, and whether it is mirrored.

        The crop is (left, top, width, height) in fractions of the image.
        """
        chance = random.Random(f"{self.seed}/{self.epoch}/{index}")
        left, top, width, height = 0.0, 0.0, 1.0, 1.0
        if self.crop > 0:
            width, height = (1 - self.crop * chance.random() for _ in range(2))
            left, top = ((1 - side) * chance.random() for side in (width, height))
        flips = self.flip and chance.random() < 0.5
        mirrored = flips and not self.images[index].mentions_left_or_right
        return (left, top, width, height), mirrored


def load_pixels(dataset: ImageDataset, *, workers: Workers, **options: Any) -> Generator[Tensor]:
    """Yield batches of pixels (B, 3, S, S) uint8; `options` are those of torch's DataLoader.

    Raises CaptionerError, while iterating: an image cannot be read.
    """
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    count = max(1, cores() // local) if workers == "auto" else workers
    indices: Any = range(len(dataset))
    loader: DataLoader[Tensor | CaptionerError] = DataLoader(
        indices,
        num_workers=min(count, cores()),
        collate_fn=partial(_load, dataset),
        # A separate generator, so that loading does not change the random numbers of training.
        generator=torch.Generator().manual_seed(0),
        worker_init_fn=_ignore_signals,
        # Other methods would copy the whole dataset to every worker.
        multiprocessing_context="fork" if sys.platform == "linux" and count else None,
        **options,
    )
    batches = _iterate(loader)
    _ACTIVE.add(batches)
    return batches


def _iterate(loader: DataLoader[Tensor | CaptionerError]) -> Generator[Tensor]:
    with _signals_blocked():
        batches = iter(loader)
    try:
        for batch in batches:
            if isinstance(batch, CaptionerError):
                raise batch
            yield batch
    finally:
        del batches  # ends the workers, even if a traceback keeps this frame alive


def _load(dataset: ImageDataset, indices: Sequence[int]) -> Tensor | CaptionerError:
    """Return errors instead of raising them: a raised error would get the worker's traceback."""
    try:
        return torch.stack([dataset[index] for index in indices])
    except CaptionerError as error:
        return error


def split_loader(
    images: Sequence[CaptionedImage], transform: Transform, *, workers: Workers, batch_size: int
) -> Generator[Tensor]:
    """Load the pixels of a split in its order, without augmentation."""
    return load_pixels(ImageDataset(images, transform), workers=workers, batch_size=batch_size)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals while workers start. Workers inherit the block, then ignore the signals."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_signals(_: int) -> None:
    """Leave Ctrl-C and SIGTERM to the main process, which finishes its step first.

    A worker exits when its loader is closed or the main process has died.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
