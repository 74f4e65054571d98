"""What a command computes on, and in which dtype: as asked for, or what the machine is fast in."""

from __future__ import annotations

import os
import platform
from argparse import ArgumentParser, _ArgumentGroup
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    import torch

__all__ = ["add_machine_arguments", "best_dtype", "cores", "find_device", "find_dtype"]

_DTYPES = ("float32", "bfloat16")

# As /proc/cpuinfo spells them: x86 with AMX, and ARM. Without them bfloat16 is emulated, and slower
# than float32. With AVX-512 alone it is slower by 1.5 times on a Xeon whose AMX was hidden, and
# faster by 1.4 to 1.6 times on AMD's.
_FLAGS = ("amx_bf16", "bf16")
_OF_AMD = {"AuthenticAMD", "avx512_bf16"}


def add_machine_arguments(parser: ArgumentParser | _ArgumentGroup, *, dtype: bool = True) -> None:
    """Declare `--device`, and `--dtype` unless the command has its own way with that."""
    add = parser.add_argument
    add("--device", default="auto", metavar="NAME", help="auto, cpu or cuda; default: auto")
    if dtype:
        add("--dtype", default="auto", metavar="NAME",
            help="auto (bfloat16 where it is fast), float32, bfloat16")  # fmt: skip


def find_device(name: str | torch.device) -> torch.device:
    """Turn "auto", "cpu", "cuda", "cuda:1" or "mps" into a device that is there.

    Raises DeviceError: torch does not know the name, or this machine has no such device.
    """
    import torch

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
    """Turn "auto", "float32" or "bfloat16" into a dtype; a dtype stays as it is.

    Raises ConfigError: there is no such name.
    """
    import torch

    if isinstance(name, torch.dtype):
        return name
    if name == "auto":
        return best_dtype(device)[0]
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is not one of auto, {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def best_dtype(device: torch.device) -> tuple[torch.dtype, str]:
    """Choose bfloat16 where the hardware has it; with the reason, in words."""
    import torch

    if device.type == "cuda":
        with torch.cuda.device(device):
            if torch.cuda.is_bf16_supported(including_emulation=False):
                return torch.bfloat16, "the GPU has bfloat16"
        return torch.float32, "the GPU has no bfloat16"
    if device.type != "cpu":
        return torch.float32, f"on {device.type}"
    if platform.system() != "Linux":
        return torch.float32, f"what the CPU is fast in is not known on {platform.system()}"
    known = _cpu_flags()
    for flag in _FLAGS:
        if flag in known:
            return torch.bfloat16, f"the CPU has {flag}"
    if known >= _OF_AMD:
        return torch.bfloat16, "the CPU, AMD's, has avx512_bf16"
    return torch.float32, "the CPU has no fast bfloat16"


def cores() -> int:
    """Count the cores that this process may run on: 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_flags() -> set[str]:
    """What Linux says that the CPU has, and whose it is; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {
        flag
        for line in lines
        if line.lower().startswith(("flags", "features", "vendor_id"))
        for flag in line.split(":", 1)[1].split()
    }
