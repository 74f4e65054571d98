"""Training images decoded once into squares, and augmented in batches on the device."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.vision.transform import LARGEST_SIDE, Transform
from captioner_training.data.batches import ImageSource
from captioner_training.data.cache import CachedTensors, ResidentTensors, cache_paths
from captioner_training.data.dataset import ImageDataset
from captioner_training.data.loader import Workers, split_loader
from captioner_training.distributed import Processes
from captioner_training.memory import fits_on_gpu
from captioner_training.progress import show_progress

__all__ = ["SQUARES_FILES", "SquareSource"]

SQUARES_FILES = "squares-*.u8"
"""Pattern of the names of cache files."""

_BATCH = 64  # images that are decoded at once


class SquareSource:
    """Training images as squares (N, 3, S', S') uint8, in the memory of a device or in files.

    Images are cropped and mirrored as in ImageDataset, and resampled bilinearly from the squares.

    Args:
        dataset: the images and their augmentation; its transform squashes photos to squares.
        squares: loads the squares of images by their positions in `dataset`.
        device: the device that augments.
    """

    def __init__(
        self, dataset: ImageDataset, squares: ImageSource, *, device: torch.device
    ) -> None:
        self.dataset, self.squares, self.device = dataset, squares, device

    @classmethod
    def create(
        cls,
        dataset: ImageDataset,
        *,
        folder: Path,
        reserve: Callable[[], int],
        workers: Workers,
        processes: Processes,
    ) -> SquareSource | None:
        """Decode the images into GPU memory, or into files in `folder` if they do not fit.

        Returns None on a CPU, for transforms that crop or pad photos, and if the disk has no room
        for the files and `reserve()` other bytes. All processes of a run call this together.
        """
        if dataset.transform.config.mode != "squash" or processes.device.type != "cuda":
            return None
        size = math.prod(_shape(dataset))
        # All processes must agree, because they write files together.
        if all(processes.gather(fits_on_gpu(size, processes.device))):
            return cls.decode(dataset, workers=workers, processes=processes)
        return cls.cached(
            dataset, folder=folder, reserve=reserve, workers=workers, processes=processes
        )

    @classmethod
    def decode(
        cls, dataset: ImageDataset, *, workers: Workers, processes: Processes
    ) -> SquareSource:
        """Decode all images into the memory of the processes' device."""
        device, count = processes.device, len(dataset)
        squares = torch.empty(_shape(dataset), dtype=torch.uint8, device=device)
        loader = split_loader(dataset.images, _whole(dataset), workers=workers, batch_size=_BATCH)
        first = 0
        with show_progress("decoding", count, quiet=not processes.main) as advance:
            for pixels in loader:
                squares[first : first + len(pixels)] = pixels.to(device)
                first += len(pixels)
                advance(len(pixels))
        return cls(dataset, ResidentTensors(squares), device=device)

    @classmethod
    def cached(
        cls,
        dataset: ImageDataset,
        *,
        folder: Path,
        reserve: Callable[[], int],
        workers: Workers,
        processes: Processes,
    ) -> SquareSource | None:
        """Decode the images that are not yet in files; None if the disk has no room for them.

        File names contain a hash of transform, size and images. Each process writes some files.
        """
        whole, device, shape = _whole(dataset), processes.device, _shape(dataset)
        squares = CachedTensors(
            cache_paths(folder, SQUARES_FILES, dataset.images, whole.config, processes=processes),
            shape,
            dtype=torch.uint8,
            pinned=device.type == "cuda",
        )
        if processes.broadcast(processes.main and squares.has_room(reserve=reserve())) and (
            squares.fill(
                dataset.images,
                whole,
                iter,
                task="decoding",
                processes=processes,
                workers=workers,
                optional=True,
            )
        ):
            return cls(dataset, squares, device=device)
        if processes.main:
            print(
                f"no room in {folder} for {math.prod(shape) / 1e9:.2f} GB of decoded photos: "
                "every epoch decodes them again",
                file=sys.stderr,
            )
        return None

    def batches(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:
        """Yield the pixels of each list of positions, augmented for the epoch."""
        self.dataset.epoch = epoch
        with closing(self.squares.batches(order, epoch=epoch)) as loaded:
            for positions, squares in zip(order, loaded, strict=True):
                yield self._augmented(squares.to(self.device, non_blocking=True), positions)

    def _augmented(self, squares: Tensor, positions: Sequence[int]) -> Tensor:
        """Crop, mirror and resize squares (B, 3, S', S'); returns uint8 (B, 3, S, S)."""
        side = self.dataset.transform.config.size
        rows = []
        for view in map(self.dataset.view, positions):
            across = -view.width if view.mirrored else view.width
            rows.append(
                [
                    [across, 0.0, 2 * view.left + view.width - 1],
                    [0.0, view.height, 2 * view.top + view.height - 1],
                ]
            )
        maps = torch.tensor(rows).to(self.device, non_blocking=True)
        grid = F.affine_grid(maps, [len(positions), 3, side, side], align_corners=False)
        pixels = F.grid_sample(
            squares.float(), grid, mode="bilinear", padding_mode="border", align_corners=False,
        )  # fmt: skip
        return pixels.round_().clamp_(0, 255).to(torch.uint8)


def _whole(dataset: ImageDataset) -> Transform:
    """Return a transform to squares whose smallest crop still has enough pixels, if possible."""
    config = dataset.transform.config
    side = math.ceil(config.size / (1 - dataset.augmentation.crop))
    return Transform(replace(config, size=min(side, LARGEST_SIDE)))


def _shape(dataset: ImageDataset) -> tuple[int, int, int, int]:
    side = _whole(dataset).config.size
    return len(dataset), 3, side, side
