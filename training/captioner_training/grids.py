"""Grids computed once for a frozen encoder, kept as float16 in a file that is mapped, not read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from captioner.errors import OutputError
from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner_training.dataset import CaptionedImage, ImageDataset

__all__ = ["CachedGrids"]


class CachedGrids:
    """The grids (N, L, D) of N images on disk.

    Takes N * L * D * 2 bytes: 125 kB an image for 7 x 7 cells of 1,280 features.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int]) -> None:
        self._map = np.memmap(path, dtype=np.float16, mode="r", shape=shape)

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        """Read the grids (B, L, D) of these images."""
        return torch.from_numpy(np.stack([self._map[index] for index in indices]))

    @classmethod
    @torch.inference_mode()
    def compute(
        cls,
        model: CaptionModel,
        images: Sequence[CaptionedImage],
        transform: Transform,
        *,
        folder: Path,
        device: torch.device,
        autocast: torch.autocast,
        workers: int,
        batch_size: int = 32,
    ) -> CachedGrids:
        """Encode every image once, or find the file that an earlier run finished.

        The name of the file holds a digest of encoder, transform and images, and it only gets
        that name when it is whole: what is found is never stale and never half.

        Raises:
            OutputError: the disk is full, or the folder cannot be written.

        """
        side = transform.config.size // model.config.encoder.stride
        shape = (len(images), side * side, model.config.decoder.grid_dim)
        path = folder / f"grids-{_digest(model, images, transform)}.f16"
        if not path.exists():
            loader = DataLoader(
                ImageDataset(images, transform), batch_size=batch_size, num_workers=workers
            )
            temporary = path.with_suffix(".part")
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with temporary.open("wb") as file:
                    for pixels, _ in tqdm(loader, desc="grids", leave=False, disable=None):
                        with autocast:
                            grid = model.encode(transform.normalize(pixels.to(device)))
                        file.write(grid.features.half().cpu().numpy().tobytes())
                temporary.replace(path)
            except OSError as error:
                raise OutputError(f"{temporary} cannot be written: {error}") from error
        return cls(path, shape)


def _digest(model: CaptionModel, images: Sequence[CaptionedImage], transform: Transform) -> str:
    digest = hashlib.sha256(repr((model.config.encoder, transform.config)).encode())
    for tensor in model.encoder.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    for image in images:
        digest.update(f"{image.store.identity}/{image.name}\n".encode())
    return digest.hexdigest()[:16]
