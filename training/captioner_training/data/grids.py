"""Grids of a frozen encoder, computed once and cached as float16 in files or in GPU memory."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.files import replace_file, writing
from captioner.vision.encoder import Encoder, prepare_encoder
from captioner.vision.transform import Transform
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import Workers, split_loader
from captioner_training.distributed import Processes
from captioner_training.memory import fits_on_gpu
from captioner_training.progress import show_progress

__all__ = ["GRIDS_A_FILE", "GRIDS_FILES", "CachedGrids", "ResidentGrids"]

GRIDS_FILES = "grids-*.f16"
"""Pattern of the names of cache files."""

_BATCH = 32  # images that are encoded at once; a file has whole batches
GRIDS_A_FILE = 32 * _BATCH  # an interruption loses at most one file


class CachedGrids:
    """The grids (N, L, D) of N images on disk.

    Args:
        paths: the files, with GRIDS_A_FILE grids each; the last may have fewer.
        shape: (N, L, D).
    """

    def __init__(self, paths: Sequence[Path], shape: tuple[int, int, int]) -> None:
        self._paths, self.shape = list(paths), shape
        self._per_file = GRIDS_A_FILE if len(paths) > 1 else shape[0]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        """Read the grids (B, L, D) of these images."""
        _, cells, features = self.shape
        rows = [
            np.fromfile(path, np.float16, cells * features, offset=2 * cells * features * place)
            for path, place in (
                (self._paths[index // self._per_file], index % self._per_file) for index in indices
            )
        ]
        return torch.from_numpy(np.stack(rows).reshape(-1, cells, features))

    def batches(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:  # noqa: ARG002
        """Yield the grids of each list of positions, reading one list ahead."""
        with ThreadPoolExecutor(max_workers=1) as reader:
            ahead = None
            for positions in order:
                ready, ahead = ahead, reader.submit(self.__getitem__, positions)
                if ready is not None:
                    yield ready.result()
            if ahead is not None:
                yield ahead.result()

    def resident(self, device: torch.device) -> ResidentGrids | None:
        """Load the grids into GPU memory; None without a GPU, or if they do not fit."""
        if not fits_on_gpu(2 * math.prod(self.shape), device):
            return None
        grids = torch.empty(self.shape, dtype=torch.float16, device=device)
        for first in range(0, len(self), GRIDS_A_FILE):
            part = self[range(first, min(first + GRIDS_A_FILE, len(self)))]
            grids[first : first + len(part)] = part.to(device)
        return ResidentGrids(grids)

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

        File names contain a hash of encoder, dtype, transform and images. A file gets its name only
        when it is complete. Each process writes some of the files, with `workers` to decode images.

        Raises OutputError: the disk is full, or the folder cannot be written.
        """
        side = transform.config.size // encoder.config.stride
        shape = (len(images), side * side, encoder.channels())
        digest = processes.broadcast(
            _digest(encoder, images, transform, dtype) if processes.main else ""
        )
        count = -(-len(images) // GRIDS_A_FILE)
        paths = [folder / f"grids-{digest}-{number:05d}.f16" for number in range(count)]
        missing = processes.broadcast([n for n, path in enumerate(paths) if not path.exists()])
        processes.main_alone(lambda: _make(folder))
        if mine := missing[processes.rank :: processes.world]:
            ready = prepare_encoder(copy.deepcopy(encoder), device=processes.device, dtype=dtype)
            shares = {paths[number]: _share(images, number) for number in mine}
            _write(shares, ready, transform, processes=processes, workers=workers)
        processes.wait()
        return cls(paths, shape)


class ResidentGrids:
    """Grids (N, L, D) in the memory of a device."""

    def __init__(self, grids: Tensor) -> None:
        self.grids = grids

    def batches(self, order: Sequence[Sequence[int]], *, epoch: int) -> Generator[Tensor]:  # noqa: ARG002
        """Yield the grids of each list of positions."""
        for positions in order:
            index = torch.tensor(positions).to(self.grids.device, non_blocking=True)
            yield self.grids.index_select(0, index)


def _share(images: Sequence[CaptionedImage], number: int) -> Sequence[CaptionedImage]:
    return images[number * GRIDS_A_FILE : (number + 1) * GRIDS_A_FILE]


def _write(
    shares: Mapping[Path, Sequence[CaptionedImage]],
    encoder: Encoder,
    transform: Transform,
    *,
    processes: Processes,
    workers: Workers,
) -> None:
    total = sum(map(len, shares.values()))
    with show_progress("encoding", total, quiet=not processes.main) as count:
        images = [*chain.from_iterable(shares.values())]
        loader = split_loader(images, transform, workers=workers, batch_size=_BATCH)
        encoded = _encode(encoder, loader, transform, processes.device)
        for path, share in shares.items():
            with replace_file(path) as file:
                for grids in islice(encoded, -(-len(share) // _BATCH)):
                    file.write(grids.tobytes())
                    count(len(grids))


@torch.inference_mode()
def _encode(
    encoder: Encoder, loader: Iterable[Tensor], transform: Transform, device: torch.device
) -> Iterator[NDArray[np.float16]]:
    dtype = next(encoder.parameters()).dtype
    for pixels in loader:
        normal = transform.normalize(pixels.to(device, non_blocking=True))
        grid = encoder(normal.to(dtype, memory_format=torch.channels_last))
        yield grid.features.half().cpu().numpy()


def _make(folder: Path) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def _digest(
    encoder: Encoder, images: Sequence[CaptionedImage], transform: Transform, dtype: torch.dtype
) -> str:
    settings = (encoder.config, transform.config, dtype, GRIDS_A_FILE)
    digest = hashlib.sha256(repr(settings).encode())
    for tensor in encoder.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    for image in images:
        digest.update(f"{image.store.mark(image.name)}/{image.name}\n".encode())
    return digest.hexdigest()[:16]
