"""Tensors of images that are computed once: cached in files, or in the memory of a device."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor

from captioner.errors import DataError
from captioner.files import replace_file, writing
from captioner.vision.transform import Transform
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import Workers, split_loader
from captioner_training.distributed import Processes
from captioner_training.memory import fits_on_gpu
from captioner_training.progress import show_progress

__all__ = [
    "IMAGES_A_FILE",
    "CachedTensors",
    "ResidentTensors",
    "cache_key",
    "cache_paths",
]

_BATCH = 32  # images that are computed at once; a file has whole batches
IMAGES_A_FILE = 32 * _BATCH  # an interruption loses at most one file


class CachedTensors:
    """One float16 tensor per image, in files.

    The system keeps the files in memory while there is room. They are read, not mapped, because a
    read error of a mapped file kills the process.

    Args:
        paths: the files, with IMAGES_A_FILE tensors each; the last may have fewer.
        shape: (N, ...) for N images.
        pinned: whether `batches` yields tensors in pinned memory, for fast copies to a GPU.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        shape: tuple[int, ...],
        *,
        pinned: bool = False,
    ) -> None:
        self._paths, self.shape, self.pinned = list(paths), shape, pinned
        self._per_file = IMAGES_A_FILE if len(paths) > 1 else shape[0]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        """Read the tensors (B, ...) of these images. Raises DataError."""
        return self._read(indices, self._empty(len(indices), pinned=False))

    def _empty(self, count: int, *, pinned: bool) -> Tensor:
        return torch.empty((count, *self.shape[1:]), dtype=torch.float16, pin_memory=pinned)

    def _read(self, indices: Sequence[int], tensors: Tensor) -> Tensor:
        """Read into the rows of `tensors`."""
        for index, row in zip(indices, tensors.numpy(), strict=True):
            path, place = self._paths[index // self._per_file], index % self._per_file
            try:
                with path.open("rb") as file:
                    file.seek(place * row.nbytes)
                    if file.readinto(row) != row.nbytes:
                        raise DataError(
                            f"{path} is truncated: delete it and run the same command again"
                        )
            except OSError as error:
                raise DataError(
                    f"{path} cannot be read ({error.strerror}): delete it if it exists, and run "
                    "the same command again"
                ) from error
        return tensors

    def batches(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:  # noqa: ARG002
        """Yield the tensors of each list of positions, reading one list ahead. Raises DataError."""
        with ThreadPoolExecutor(max_workers=1) as reader:
            ahead = None
            for positions in order:
                empty = self._empty(len(positions), pinned=self.pinned)
                ready, ahead = ahead, reader.submit(self._read, positions, empty)
                if ready is not None:
                    yield ready.result()
            if ahead is not None:
                yield ahead.result()

    def resident(self, device: torch.device) -> ResidentTensors | None:
        """Load the tensors into GPU memory; None without a GPU, or if they do not fit."""
        if not fits_on_gpu(2 * math.prod(self.shape), device):
            return None
        tensors = torch.empty(self.shape, dtype=torch.float16, device=device)
        for first in range(0, len(self), IMAGES_A_FILE):
            part = self[range(first, min(first + IMAGES_A_FILE, len(self)))]
            tensors[first : first + len(part)] = part.to(device)
        return ResidentTensors(tensors)

    def fill(
        self,
        images: Sequence[CaptionedImage],
        transform: Transform,
        convert: Callable[[Iterable[Tensor]], Iterable[Tensor]],
        *,
        task: str,
        processes: Processes,
        workers: Workers,
    ) -> None:
        """Write the missing files. All processes call this together, and each writes some files.

        A file gets its name only when it is complete.

        Args:
            images: all images.
            transform: makes the pixels of the images.
            convert: converts batches of pixels to tensors on the CPU. Called only if files of this
                process are missing.
            task: the name of the task, for progress.
            processes: the processes of the run.
            workers: processes that decode images, per process of the run.

        Raises:
            DataError: an image cannot be read.
            OutputError: a file cannot be written, for instance because the disk is full.
        """
        missing = processes.broadcast(self._missing())
        processes.main_alone(lambda: _make(self._paths[0].parent))
        mine = missing[processes.rank :: processes.world]
        shares = [images[n * self._per_file : (n + 1) * self._per_file] for n in mine]
        decoded = [*chain.from_iterable(shares)]
        if mine:
            with show_progress(task, len(decoded), quiet=not processes.main) as count:
                loader = split_loader(decoded, transform, workers=workers, batch_size=_BATCH)
                batches = iter(convert(loader))
                for number, share in zip(mine, shares, strict=True):
                    self._write(number, islice(batches, -(-len(share) // _BATCH)), count)
        processes.wait()

    def _write(
        self, number: int, batches: Iterable[Tensor], count: Callable[[int], object]
    ) -> None:
        with replace_file(self._paths[number]) as file:
            for tensors in batches:
                file.write(tensors.numpy().tobytes())
                count(len(tensors))

    def _missing(self) -> list[int]:
        return [number for number, path in enumerate(self._paths) if not path.exists()]


class ResidentTensors:
    """One tensor per image, (N, ...), in the memory of a device."""

    def __init__(self, tensors: Tensor) -> None:
        self.tensors = tensors

    def batches(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:  # noqa: ARG002
        """Yield the tensors of each list of positions."""
        for positions in order:
            index = torch.tensor(positions).to(self.tensors.device, non_blocking=True)
            yield self.tensors.index_select(0, index)


def cache_key(
    images: Sequence[CaptionedImage], *settings: object, weights: Iterable[Tensor] = ()
) -> str:
    """Return a hash of settings, weights and images that changes when an image is replaced."""
    digest = hashlib.sha256(repr((*settings, IMAGES_A_FILE)).encode())
    for tensor in weights:
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    for image in images:
        digest.update(f"{image.store.mark(image.name)}/{image.name}\n".encode())
    return digest.hexdigest()[:16]


def cache_paths(
    folder: Path,
    pattern: str,
    images: Sequence[CaptionedImage],
    *settings: object,
    processes: Processes,
    weights: Iterable[Tensor] = (),
) -> list[Path]:
    """Return the paths of the cache files of images. All processes call this together.

    `pattern` has a star in the place of a hash, see `cache_key`, and of the number of a file.
    """
    key = cache_key(images, *settings, weights=weights) if processes.main else ""
    key, count = processes.broadcast(key), -(-len(images) // IMAGES_A_FILE)
    return [folder / pattern.replace("*", f"{key}-{number:05d}") for number in range(count)]


def _make(folder: Path) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
