"""Which dtype is fastest where, and a Captioner in it."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import nn

from captioner.checkpoint import load_checkpoint
from captioner.errors import ConfigError
from captioner.folding import fold_batch_norm
from captioner.geometry import TransformConfig
from captioner.header import bundled_checkpoint
from captioner.predictor import Captioner, find_device
from captioner.vocabulary import Vocabulary

__all__ = ["DTYPES", "best_dtype", "fingerprint", "load_captioner"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# As /proc/cpuinfo spells them: x86 with AMX or AVX-512, and ARM. Without them bfloat16 is emulated,
# and slower than float32.
_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")


# Of captioners whose BatchNorm is folded: their weights are not those of the checkpoint any more.
_FINGERPRINTS: WeakKeyDictionary[Captioner, str] = WeakKeyDictionary()


def best_dtype(device: torch.device) -> tuple[torch.dtype, str]:
    """Choose bfloat16 where the hardware has it; with the reason, in words."""
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, "the GPU has it"
        return torch.float32, "the GPU has no bfloat16"
    if device.type != "cpu":
        return torch.float32, f"on {device.type}"
    known = _cpu_flags()
    for flag in _FLAGS:
        if flag in known:
            return torch.bfloat16, f"the CPU has {flag}"
    return torch.float32, "the CPU has no bfloat16"


def load_captioner(
    checkpoint: str | os.PathLike[str] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str = "auto",
    max_pixels: int | None = None,
) -> Captioner:
    """Load a checkpoint for a batch.

    Args:
        checkpoint: a file; None is the bundled one.
        device: see captioner.predictor.find_device.
        dtype: auto, float32 or bfloat16.
        max_pixels: larger photos are refused; None: the usual limit.

    Raises:
        ConfigError: no such dtype.
        CheckpointError: the file cannot be used.
        DeviceError: this machine has no such device.

    """
    place = find_device(device)
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not one of auto, {', '.join(DTYPES)}")
    kind = best_dtype(place)[0] if dtype == "auto" else DTYPES[dtype]
    limit = {} if max_pixels is None else {"max_pixels": max_pixels}
    loaded = load_checkpoint(bundled_checkpoint() if checkpoint is None else checkpoint)
    told = _digest(loaded.model, loaded.vocabulary, loaded.transform)
    fold_batch_norm(loaded.model.encoder)
    loaded.model.decoder.tabulate()  # in float32, as the folding: rounded once
    captioner = Captioner(loaded, device=place, dtype=kind, **limit)
    _FINGERPRINTS[captioner] = told
    return captioner


def fingerprint(captioner: Captioner) -> str:
    """Digest what decides the captions: weights, vocabulary, transform; the same in every dtype."""
    if captioner in _FINGERPRINTS:
        return _FINGERPRINTS[captioner]
    return _digest(captioner.model, captioner.vocabulary, captioner.transform.config)


def _digest(model: nn.Module, vocabulary: Vocabulary, transform: TransformConfig) -> str:
    told = hashlib.sha256(repr((vocabulary.words, transform)).encode())
    for tensor in model.state_dict().values():
        told.update(tensor.bfloat16().cpu().contiguous().view(torch.int16).numpy().tobytes())
    return told.hexdigest()[:16]


def _cpu_flags() -> set[str]:
    if platform.system() != "Linux":
        return set()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {
        flag
        for line in lines
        if line.lower().startswith(("flags", "features"))
        for flag in line.split(":", 1)[1].split()
    }
