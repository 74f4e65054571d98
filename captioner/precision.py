"""Which dtype a model computes in: the fastest that the hardware has, or the one asked for."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from captioner.device_names import DTYPE_NAMES, check_dtype

__all__ = ["DTYPES", "best_dtype", "find_dtype"]

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
"""The dtypes by the name that `--dtype` takes, beside auto."""

# As /proc/cpuinfo spells them: x86 with AMX or AVX-512, and ARM. Without them bfloat16 is emulated,
# and slower than float32.
_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")


def find_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Turn "auto" or a name in DTYPES into a dtype; a dtype stays as it is.

    Raises:
        ConfigError: there is no such name.

    """
    if isinstance(name, torch.dtype):
        return name
    check_dtype(name)
    if name == "auto":
        return best_dtype(device)[0]
    return DTYPES[name]


def best_dtype(device: torch.device) -> tuple[torch.dtype, str]:
    """Choose bfloat16 where the hardware has it; with the reason, in words."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            has = torch.cuda.is_bf16_supported(including_emulation=False)
        if has:
            return torch.bfloat16, "the GPU has bfloat16"
        return torch.float32, "the GPU has no bfloat16"
    if device.type != "cpu":
        return torch.float32, f"on {device.type}"
    known = _cpu_flags()
    for flag in _FLAGS:
        if flag in known:
            return torch.bfloat16, f"the CPU has {flag}"
    if platform.system() != "Linux":
        return torch.float32, f"what the CPU is fast in is not known on {platform.system()}"
    return torch.float32, "the CPU has no bfloat16"


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
