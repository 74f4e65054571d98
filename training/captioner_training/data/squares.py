"""Training images decoded once into GPU memory as squares, and augmented there."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from captioner.vision.transform import Transform
from captioner_training.data.dataset import ImageDataset
from captioner_training.data.loader import Workers, split_loader
from captioner_training.distributed import Processes
from captioner_training.memory import fits_on_gpu
from captioner_training.progress import show_progress

__all__ = ["SquareSource"]

_BATCH = 64  # images that are decoded at once


class SquareSource:
    """Training images as squares (N, 3, S', S') uint8 in the memory of a device.

    Images are cropped and mirrored as in ImageDataset, and resampled bilinearly from the squares.

    Args:
        dataset: the images and their augmentation; its transform squashes photos to squares.
        squares: all images, in the order of `dataset`.
    """

    def __init__(self, dataset: ImageDataset, squares: Tensor) -> None:
        self.dataset, self.squares = dataset, squares

    @classmethod
    def resident(
        cls, dataset: ImageDataset, *, workers: Workers, processes: Processes
    ) -> SquareSource | None:
        """Decode the images into GPU memory.

        Returns None on a CPU, for transforms that crop or pad photos, and if the squares would need
        most of the free memory.
        """
        size = len(dataset) * 3 * _stored_side(dataset) ** 2
        is_squashed = dataset.transform.config.mode == "squash"
        if not is_squashed or not fits_on_gpu(size, processes.device):
            return None
        return cls.decode(dataset, workers=workers, processes=processes)

    @classmethod
    def decode(
        cls, dataset: ImageDataset, *, workers: Workers, processes: Processes
    ) -> SquareSource:
        """Decode all images into the memory of the processes' device."""
        side, count = _stored_side(dataset), len(dataset)
        squares = torch.empty((count, 3, side, side), dtype=torch.uint8, device=processes.device)
        whole = Transform(replace(dataset.transform.config, size=side))
        loader = split_loader(dataset.images, whole, workers=workers, batch_size=_BATCH)
        first = 0
        with show_progress("decoding", count, quiet=not processes.main) as advance:
            for pixels in loader:
                squares[first : first + len(pixels)] = pixels.to(processes.device)
                first += len(pixels)
                advance(len(pixels))
        return cls(dataset, squares)

    def batches(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:
        """Yield the pixels of each list of positions, augmented for the epoch."""
        self.dataset.epoch = epoch
        for positions in order:
            yield self._augmented(positions)

    def _augmented(self, positions: Sequence[int]) -> Tensor:
        """Return the images at these positions: uint8 (B, 3, S, S)."""
        device, side = self.squares.device, self.dataset.transform.config.size
        rows = []
        for view in map(self.dataset.view, positions):
            across = -view.width if view.mirrored else view.width
            rows.append(
                [
                    [across, 0.0, 2 * view.left + view.width - 1],
                    [0.0, view.height, 2 * view.top + view.height - 1],
                ]
            )
        maps = torch.tensor(rows).to(device, non_blocking=True)
        index = torch.tensor(positions).to(device, non_blocking=True)
        grid = F.affine_grid(maps, [len(positions), 3, side, side], align_corners=False)
        pixels = F.grid_sample(
            self.squares.index_select(0, index).float(), grid,
            mode="bilinear", padding_mode="border", align_corners=False,
        )  # fmt: skip
        return pixels.round_().clamp_(0, 255).to(torch.uint8)


def _stored_side(dataset: ImageDataset) -> int:
    """Return the side of squares whose smallest crop still has enough pixels."""
    return math.ceil(dataset.transform.config.size / (1 - dataset.augmentation.crop))
