"""Grids of a frozen encoder, computed once as float16: cached in files, or in GPU memory."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from captioner.errors import DataError
from captioner.inference.prepare import prepare_encoder
from captioner.model.encoder import Encoder
from captioner.photos.transform import Transform
from captioner.shared.files import replace_file, writing
from captioner_training.data.images import CaptionedImage
from captioner_training.data.pixels import Workers, split_loader
from captioner_training.distributed import Processes, progress_bar

GRIDS_FILES = "grids-*.f16"
"""Pattern of the names of cache files."""

_BATCH = 32  # images that are computed at once; a file has whole batches
_SHARE = 0.6  # share of a GPU's free memory that grids may use
IMAGES_A_FILE = 32 * _BATCH  # an interruption loses at most one file


class CachedGrids:
    """The grids (N, L, D) of N images, float16, in files.

    The system keeps the files in memory while there is room. They are read, not mapped, because a
    read error of a mapped file kills the process.

    Args:
        paths: the files, with IMAGES_A_FILE grids each; the last may have fewer.
        shape: (N, L, D).
        pinned: whether `batches` yields tensors in pinned memory, for fast copies to a GPU.
    """

    def __init__(
        self, paths: Sequence[Path], shape: tuple[int, int, int], *, pinned: bool = False
    ) -> None:
        self._paths, self.shape, self.pinned = list(paths), shape, pinned
        self.loaded: Tensor | None = None
        self._per_file = IMAGES_A_FILE if len(paths) > 1 else shape[0]

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
        """
        side = transform.config.size // encoder.config.stride
        key = _cache_key(encoder, images, transform, dtype) if processes.main else ""
        pattern = GRIDS_FILES.replace("*", processes.broadcast(key) + "-{:05d}")
        grids = cls(
            [folder / pattern.format(n) for n in range(-(-len(images) // IMAGES_A_FILE))],
            (len(images), side * side, encoder.channels()),
            pinned=processes.device.type == "cuda",
        )
        paths = enumerate(grids._paths)
        missing = processes.broadcast([number for number, path in paths if not path.exists()])

        def make() -> None:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)

        processes.main_alone(make)
        if mine := missing[processes.rank :: processes.world]:
            ready = prepare_encoder(copy.deepcopy(encoder), device=processes.device, dtype=dtype)
            size = grids._per_file
            part = [image for n in mine for image in images[n * size : (n + 1) * size]]
            with closing(
                split_loader(part, transform, workers=workers, batch_size=_BATCH)
            ) as loader:
                encoded = _encode(ready, loader, transform, processes.device)
                grids._write(mine, encoded, quiet=not processes.main)
        processes.wait()
        return grids

    def _write(self, files: Sequence[int], grids: Iterator[Tensor], *, quiet: bool) -> None:
        """Write some files. A file gets its name only when it is complete."""
        sizes = [min(self._per_file, len(self) - n * self._per_file) for n in files]
        with progress_bar("encoding", sum(sizes), quiet=quiet, leave=False) as bar:
            for number, size in zip(files, sizes, strict=True):
                with replace_file(self._paths[number]) as file:
                    for batch in islice(grids, -(-size // _BATCH)):
                        file.write(batch.numpy().tobytes())
                        bar.update(len(batch))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        """Read the grids (B, L, D) of these images."""
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

    def batches(self, order: Sequence[Sequence[int]]) -> Generator[Tensor]:
        """Yield the grids of each list of positions; read one list ahead."""
        if self.loaded is not None:
            for positions in order:
                index = torch.tensor(positions).to(self.loaded.device, non_blocking=True)
                yield self.loaded.index_select(0, index)
            return
        with ThreadPoolExecutor(max_workers=1) as reader:
            ahead = None
            for positions in order:
                empty = self._empty(len(positions), pinned=self.pinned)
                ready, ahead = ahead, reader.submit(self._read, positions, empty)
                if ready is not None:
                    yield ready.result()
            if ahead is not None:
                yield ahead.result()

    def load(self, device: torch.device) -> None:
        """Load the grids into the memory of a GPU if they fit."""
        if not fits_on_gpu(2 * math.prod(self.shape), device):
            return
        self.loaded = torch.empty(self.shape, dtype=torch.float16, device=device)
        for first in range(0, len(self), IMAGES_A_FILE):
            part = self[range(first, min(first + IMAGES_A_FILE, len(self)))]
            self.loaded[first : first + len(part)] = part.to(device)


def fits_on_gpu(size: int, device: torch.device) -> bool:
    """Whether data of `size` bytes leave enough GPU memory for training; False on a CPU."""
    if device.type != "cuda":
        return False
    torch.cuda.empty_cache()  # data of earlier stages do not count
    free, _ = torch.cuda.mem_get_info(device)
    return bool(size <= _SHARE * free)


def _cache_key(
    encoder: Encoder, images: Sequence[CaptionedImage], transform: Transform, dtype: torch.dtype
) -> str:
    """Return a hash of settings, weights and images that changes when an image is replaced."""
    settings = (encoder.config, transform.config, dtype, IMAGES_A_FILE)
    digest = hashlib.sha256(repr(settings).encode())
    for tensor in encoder.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    for image in images:
        digest.update(f"{image.store.cache_token(image.name)}/{image.name}\n".encode())
    return digest.hexdigest()[:16]


@torch.inference_mode()
def _encode(
    encoder: Encoder, loader: Iterable[Tensor], transform: Transform, device: torch.device
) -> Iterator[Tensor]:
    dtype = next(encoder.parameters()).dtype
    for pixels in loader:
        normal = transform.normalize(pixels.to(device, non_blocking=True))
        grid = encoder(normal.to(dtype, memory_format=torch.channels_last))
        yield grid.features.half().cpu()
