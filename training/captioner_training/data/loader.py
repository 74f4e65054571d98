"""Batches, decoded and put together in worker processes."""

from __future__ import annotations

import atexit
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from captioner.device import cores
from captioner.errors import CaptionerError
from captioner.vision.transform import Transform
from captioner_training.data.dataset import Batch, ImageDataset, Item, ItemDataset, collate
from captioner_training.data.images import CaptionedImage
from captioner_training.interrupts import SIGNALS

__all__ = ["Loader", "make_loader", "make_split_loader"]


Loaded = TypeVar("Loaded")

# What is being gone through. At its end Python waits for the workers, which leave its signal alone,
# and an error holds the frames that go through them.
_UNDER_WAY: WeakSet[Generator[Any]] = WeakSet()


@atexit.register
def _end_workers() -> None:
    for batches in list(_UNDER_WAY):
        batches.close()


class Loader(Generic[Loaded]):
    """Batches of a data set, which can be gone through anew.

    An image that cannot be read is an error among the items: one that a worker raises would arrive
    with the worker's traceback as its message.

    Raises CaptionerError: on the way, where an image cannot be read.
    """

    def __init__(
        self, dataset: ItemDataset, *, put_together: Callable[[list[Item]], Loaded], workers: int,
        seed: int = 0, **options: Any,
    ) -> None:  # fmt: skip
        self._loader: DataLoader[Item | CaptionerError] = DataLoader(
            _Caught(dataset),
            num_workers=min(workers, cores()),
            collate_fn=partial(_first_error_or, put_together),
            # Of its own, so that looking at data never moves the random numbers of the training.
            generator=torch.Generator().manual_seed(seed),
            worker_init_fn=_leave_signals,
            **options,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Loaded]:
        loaded = self._load()
        _UNDER_WAY.add(loaded)
        return loaded

    def _load(self) -> Generator[Loaded]:
        with _signals_held():
            batches = iter(self._loader)
        try:
            for batch in batches:
                if isinstance(batch, CaptionerError):
                    raise batch
                yield batch
        finally:
            del batches  # an error holds this frame too


class _Caught(Dataset["Item | CaptionerError"]):
    """Gives the error in place of an image that cannot be read."""

    def __init__(self, dataset: ItemDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Item | CaptionerError:
        try:
            return self.dataset[index]
        except CaptionerError as error:
            return error


def _first_error_or(
    put_together: Callable[[list[Item]], Loaded], items: Sequence[Item | CaptionerError]
) -> Loaded | CaptionerError:
    sound = list[Item]()
    for item in items:
        if isinstance(item, CaptionerError):
            return item
        sound.append(item)
    return put_together(sound)


def _with_captions(
    captions: Sequence[Sequence[Sequence[int]]],
    starts: Sequence[int],
    maximum_length: int,
    items: Sequence[Item],
) -> Batch:
    positions = [item.position for item in items]
    return collate(
        torch.stack([item.image for item in items]),
        [captions[position] for position in positions],
        starts=[starts[position] for position in positions],
        maximum_length=maximum_length,
        positions=positions,
    )


def make_loader(
    dataset: ItemDataset,
    order: Sampler[list[int]],
    captions: Sequence[Sequence[Sequence[int]]],
    *,
    starts: Sequence[int],
    maximum_length: int,
    workers: int,
    device: torch.device,
    seed: int = 0,
) -> Loader[Batch]:
    """Load batches in this order, whatever the number of workers."""
    return Loader(
        dataset,
        put_together=partial(_with_captions, captions, starts, maximum_length),
        workers=workers,
        seed=seed,
        batch_sampler=order,
        pin_memory=device.type == "cuda",
    )


def make_split_loader(
    images: Sequence[CaptionedImage], transform: Transform, *, workers: int, batch_size: int
) -> Loader[Item]:
    """Load the squares of a split in its order, with their positions; for looking, not learning."""
    dataset = ImageDataset(images, transform)
    return Loader(dataset, put_together=default_collate, workers=workers, batch_size=batch_size)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Keep signals from workers that are about to start, until they can leave them alone.

    They inherit this, and it costs them nothing; the main process hears of its own afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_signals(_: int) -> None:
    """Leave Ctrl-C and SIGTERM to the main process, which asks for the rest of its step first.

    torchrun, systemd and a terminal send them to all processes. A worker ends when its loader is
    done, and within seconds of the main process's death.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
