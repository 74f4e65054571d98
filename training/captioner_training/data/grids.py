"""Grids computed once for a frozen encoder, kept as float16 in a file that is mapped, not read."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from captioner.cores import cores
from captioner.errors import OutputError
from captioner.model import CaptionModel
from captioner.transforms import Transform
from captioner_training.data.dataset import CaptionedImage, ImageDataset
from captioner_training.machinery.processes import Processes

__all__ = ["CachedGrids"]

_UNMAP_AFTER = 256  # grids: some 50 MB; each time takes milliseconds for a file of COCO's


class CachedGrids:
    """The grids (N, L, D) of N images on disk.

    Takes N * L * D * 2 bytes: 125 kB an image for 7 x 7 cells of 1,280 features.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int]) -> None:
        self._path, self._shape, self._reads = path, shape, 0
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._grids = np.frombuffer(self._map, np.float16).reshape(shape)

    def __reduce__(self) -> tuple[object, ...]:
        return CachedGrids, (self._path, self._shape)  # another process maps the file itself

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        """Read the grids (B, L, D) of these images."""
        rows = np.stack([self._grids[index] for index in indices])
        self._reads += len(indices)
        # Let go of the pages just read, or an epoch of COCO would grow by the whole file. They stay
        # in the system's cache of files, which gives room when it is needed.
        if self._reads >= _UNMAP_AFTER and hasattr(self._map, "madvise"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)
            self._reads = 0
        return torch.from_numpy(rows)

    @classmethod
    @torch.inference_mode()
    def compute(
        cls,
        model: CaptionModel,
        images: Sequence[CaptionedImage],
        transform: Transform,
        *,
        folder: Path,
        processes: Processes,
        autocast: torch.autocast,
        workers: int,
        batch_size: int = 32,
    ) -> CachedGrids:
        """Encode every image once, or find the file that an earlier run finished.

        The name of the file holds a digest of encoder, transform and images, and it only gets
        that name when it is whole: what is found is never stale and never half. Each process
        encodes its share of the images.

        Raises:
            OutputError: the disk is full, or the folder cannot be written.

        """
        side = transform.config.size // model.config.encoder.stride
        shape = (len(images), side * side, model.encoder.channels())
        path = folder / f"grids-{_digest(model, images, transform)}.f16"
        if processes.broadcast(path.exists()):
            return cls(path, shape)
        temporary = path.with_suffix(".part")
        row = 2 * shape[1] * shape[2]
        first, last = (len(images) * (processes.rank + end) // processes.world for end in (0, 1))
        loader = DataLoader(
            ImageDataset(images[first:last], transform),
            batch_size=batch_size,
            num_workers=min(workers, cores()),
            pin_memory=processes.device.type == "cuda",
            generator=torch.Generator(),  # of its own: see make_loader
        )
        try:
            if processes.main:
                _make_room(temporary, row * len(images))
            processes.wait()
            with temporary.open("r+b") as file:
                file.seek(first * row)
                bar = tqdm(loader, desc="grids", leave=False, disable=_bar_off(processes))
                for pixels, _ in bar:
                    with autocast:
                        device_pixels = pixels.to(processes.device, non_blocking=True)
                        grid = model.encode(transform.normalize(device_pixels))
                    file.write(grid.features.half().cpu().numpy().tobytes())
                file.flush()
                os.fsync(file.fileno())
            processes.wait()
            if processes.main:
                temporary.replace(path)
            processes.wait()
        except OSError as error:
            raise OutputError(f"{temporary} cannot be written: {error.strerror}") from error
        return cls(path, shape)


def _bar_off(processes: Processes) -> bool | None:
    return None if processes.main else True  # None: off where no terminal is


def _make_room(path: Path, size: int) -> None:
    """Make a file of this size, if the disk has so much.

    Raises:
        OutputError: it has not.

    """
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free + (path.stat().st_size if path.exists() else 0)
    if free < size:
        raise OutputError(
            f"the cached grids take {size / 1e9:.1f} GB and {path.parent} has {free / 1e9:.1f} GB "
            "free: make room, or choose another --out"
        )
    with path.open("wb") as file:
        file.truncate(size)


def _digest(model: CaptionModel, images: Sequence[CaptionedImage], transform: Transform) -> str:
    digest = hashlib.sha256(repr((model.config.encoder, transform.config)).encode())
    for tensor in model.encoder.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    for image in images:
        digest.update(f"{image.store.identity}/{image.name}\n".encode())
    return digest.hexdigest()[:16]
