"""Grids of a frozen encoder, computed once and cached as float16."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from captioner.vision.encoder import Encoder, prepare_encoder
from captioner.vision.transform import Transform
from captioner_training.data.cache import CachedTensors, cache_paths
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import Workers
from captioner_training.distributed import Processes

__all__ = ["GRIDS_FILES", "CachedGrids"]

GRIDS_FILES = "grids-*.f16"
"""Pattern of the names of cache files."""


class CachedGrids(CachedTensors):
    """The grids (N, L, D) of N images in files."""

    @classmethod
    def compute(
        cls,
        encoder: Encoder,
        images: Sequence[CaptionedImage],
        transform: Transform,
        *,
        folder: Path,
        processes: Processes,
        dtype: torch.dtype,
        workers: Workers,
    ) -> CachedGrids:
        """Return the grids of images. Only images that are not in the cache are encoded.

        File names contain a hash of encoder, dtype, transform and images. Each process writes some
        of the files, with `workers` to decode images.

        Raises:
            DataError: an image cannot be read.
            OutputError: the disk is full, or the folder cannot be written.
        """

        def encode(loader: Iterable[Tensor]) -> Iterator[Tensor]:
            ready = prepare_encoder(copy.deepcopy(encoder), device=processes.device, dtype=dtype)
            return _encode(ready, loader, transform, processes.device)

        side = transform.config.size // encoder.config.stride
        settings = (encoder.config, transform.config, dtype)
        weights = encoder.state_dict().values()
        grids = cls(
            cache_paths(
                folder, GRIDS_FILES, images, *settings, processes=processes, weights=weights
            ),
            (len(images), side * side, encoder.channels()),
            pinned=processes.device.type == "cuda",
        )
        grids.fill(images, transform, encode, task="encoding", processes=processes, workers=workers)
        return grids


@torch.inference_mode()
def _encode(
    encoder: Encoder, loader: Iterable[Tensor], transform: Transform, device: torch.device
) -> Iterator[Tensor]:
    dtype = next(encoder.parameters()).dtype
    for pixels in loader:
        normal = transform.normalize(pixels.to(device, non_blocking=True))
        grid = encoder(normal.to(dtype, memory_format=torch.channels_last))
        yield grid.features.half().cpu()
