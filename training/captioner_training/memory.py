"""Check whether data fit into GPU memory, and convert errors about exhausted memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from captioner.errors import DataError, DeviceError

_SHARE = 0.6  # share of a GPU's free memory that training data may use


def fits_on_gpu(size: int, device: torch.device) -> bool:
    """Whether data of `size` bytes leave enough GPU memory for training; False on a CPU."""
    if device.type != "cuda":
        return False
    torch.cuda.empty_cache()  # data of earlier stages do not count
    free, _ = torch.cuda.mem_get_info(device)
    return bool(size <= _SHARE * free)


@contextmanager
def memory_errors() -> Iterator[None]:
    """Convert torch's errors about exhausted memory.

    Raises:
        DeviceError: the memory of the GPU is exhausted.
        DataError: the system has killed a worker of a loader.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            "the GPU has too little memory: lower batch_size or raise accumulate in the stages of "
            "the recipe, or end other programs that use the GPU"
        ) from error
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise DataError(
            "a process that loads images was killed, most likely because memory ran out: lower "
            "--data.workers and run the same command again"
        ) from error
