"""Batches of images, decoded in worker processes."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from captioner.device import cores
from captioner.errors import CaptionerError
from captioner.vision.transform import Transform
from captioner_training.data.dataset import ImageDataset
from captioner_training.data.images import CaptionedImage
from captioner_training.interrupts import SIGNALS

__all__ = ["Loader", "PixelSource", "Workers", "split_loader"]

Workers = int | Literal["auto"]
"""Number of processes that decode images; auto: the machine's cores per training process."""

# Active loaders. They are closed at exit, because their workers ignore SIGTERM.
_ACTIVE: WeakSet[Generator[Tensor]] = WeakSet()


@atexit.register
def _end_workers() -> None:
    for batches in list(_ACTIVE):
        batches.close()


class Loader:
    """Batches of pixels (B, 3, S, S) uint8 of a data set.

    Raises CaptionerError, while iterating: an image cannot be read.
    """

    def __init__(self, dataset: ImageDataset, *, workers: Workers, **options: Any) -> None:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        count = max(1, cores() // local) if workers == "auto" else workers
        self._loader: DataLoader[Tensor | CaptionerError] = DataLoader(
            _Caught(dataset),
            num_workers=min(count, cores()),
            collate_fn=_stack,
            # A separate generator, so that loading does not change the random numbers of training.
            generator=torch.Generator().manual_seed(0),
            worker_init_fn=_ignore_signals,
            # Other methods would copy the whole dataset to every worker.
            multiprocessing_context="fork" if sys.platform == "linux" and count else None,
            **options,
        )

    def __iter__(self) -> Generator[Tensor]:
        loaded = self._load()
        _ACTIVE.add(loaded)
        return loaded

    def _load(self) -> Generator[Tensor]:
        with _signals_blocked():
            batches = iter(self._loader)
        try:
            for batch in batches:
                if isinstance(batch, CaptionerError):
                    raise batch
                yield batch
        finally:
            del batches  # ends the workers, even if a traceback keeps this frame alive


class _Caught(Dataset["Tensor | CaptionerError"]):
    """Returns errors instead of raising them: a raised error would get the worker's traceback."""

    def __init__(self, dataset: ImageDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Tensor | CaptionerError:
        try:
            return self.dataset[index]
        except CaptionerError as error:
            return error


def _stack(images: Sequence[Tensor | CaptionerError]) -> Tensor | CaptionerError:
    tensors = list[Tensor]()
    for image in images:
        if isinstance(image, CaptionerError):
            return image
        tensors.append(image)
    return torch.stack(tensors)


class PixelSource:
    """Training images as pixels, decoded by `workers` processes, for a device."""

    def __init__(self, dataset: ImageDataset, *, workers: Workers, device: torch.device) -> None:
        self.dataset, self.workers, self.device = dataset, workers, device

    def batches(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:
        """Yield the pixels of each list of positions, augmented for the epoch."""
        self.dataset.epoch = epoch
        pinned = self.device.type == "cuda"
        loader = Loader(self.dataset, workers=self.workers, batch_sampler=order, pin_memory=pinned)
        return iter(loader)


def split_loader(
    images: Sequence[CaptionedImage], transform: Transform, *, workers: Workers, batch_size: int
) -> Loader:
    """Load the pixels of a split in its order, without augmentation."""
    return Loader(ImageDataset(images, transform), workers=workers, batch_size=batch_size)


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

    torchrun, systemd and terminals send these signals to all processes. A worker exits when its
    loader is closed or the main process has died.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
