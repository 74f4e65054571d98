"""Where a model runs, and in which dtype: what is asked for, or what the hardware is fast in."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from captioner.errors import ConfigError, DeviceError

__all__ = ["DTYPES", "best_dtype", "find_device", "find_dtype"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The dtypes by the name that `--dtype` takes, beside auto."""

# As /proc/cpuinfo spells them: x86 with AMX or AVX-512, and ARM. Without them bfloat16 is emulated,
# and slower than float32.
_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")


def find_device(name: str | torch.device) -> torch.device:
    """Turn "auto", "cpu", "cuda", "cuda:1" or "mps" into a device that is there.

    Raises:
        DeviceError: torch does not know the name, or this machine has no such device.

    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Expected one of"):  # some twenty names that nobody has
            reason = "no such kind of device"
        raise DeviceError(
            f"device {str(name)!r} cannot be used here ({reason}): try auto, or cpu"
        ) from error
    return device


def find_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Turn "auto" or a name in DTYPES into a dtype; a dtype stays as it is.

    Raises:
        ConfigError: there is no such name.

    """
    if isinstance(name, torch.dtype):
        return name
    if name == "auto":
        return best_dtype(device)[0]
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r} is not one of auto, {', '.join(DTYPES)}")
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
