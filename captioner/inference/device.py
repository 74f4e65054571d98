"""Devices and dtypes of the commands."""

from __future__ import annotations

import os
import platform
from argparse import ArgumentParser, _ArgumentGroup
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    import torch

_DTYPES = ("float32", "bfloat16")

# Flags in /proc/cpuinfo of x86 with AMX, and of ARM. Without them bfloat16 is slower than float32,
# except with AMD's AVX-512.
_FLAGS = {"amx_bf16", "bf16"}
_AMD_FLAGS = {"AuthenticAMD", "avx512_bf16"}


def add_machine_arguments(parser: ArgumentParser | _ArgumentGroup, *, dtype: bool = True) -> None:
    """Add `--device`, and `--dtype` if the command has a dtype."""
    add = parser.add_argument
    add("--device", default="auto", metavar="NAME", help="auto, cpu or cuda; default: auto")
    if dtype:
        add("--dtype", default="auto", metavar="NAME",
            help="auto (bfloat16 where it is fast), float32, bfloat16")  # fmt: skip


def find_device(name: str | torch.device) -> torch.device:
    """Return the device called `name`: "auto", "cpu", "cuda", "cuda:1", "mps", ...

    Raises DeviceError: torch has no such device, or this machine does not.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Expected one of"):  # a list of all backends follows
            reason = "no such kind of device"
        raise DeviceError(
            f"device {str(name)!r} cannot be used here ({reason}): try auto, or cpu"
        ) from error
    return device


def find_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype for "auto", "float32" or "bfloat16"; a torch.dtype is returned unchanged.

    Raises ConfigError: another name, or a torch.dtype of integers.
    """
    import torch

    if isinstance(name, torch.dtype):
        if not name.is_floating_point:
            raise ConfigError(f"dtype {name} has no fractions: use auto, {', '.join(_DTYPES)}")
        return name
    if name == "auto":
        return best_dtype(device)[0]
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is not one of auto, {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def best_dtype(device: torch.device) -> tuple[torch.dtype, str]:
    """Return bfloat16 if the hardware supports it, else float32; and the reason."""
    import torch

    if device.type == "cuda":
        with torch.cuda.device(device):
            if torch.cuda.is_bf16_supported(including_emulation=False):
                return torch.bfloat16, "the GPU has bfloat16"
        return torch.float32, "the GPU has no bfloat16"
    if device.type != "cpu":
        return torch.float32, f"on {device.type}"
    if platform.system() != "Linux":
        return torch.float32, f"bfloat16 is not tested on {platform.system()}"
    flags = _cpu_flags()
    if fast := _FLAGS & flags:
        return torch.bfloat16, f"the CPU has {min(fast)}"
    if flags >= _AMD_FLAGS:
        return torch.bfloat16, "the CPU has AMD's avx512_bf16"
    return torch.float32, "the CPU has no fast bfloat16"


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_flags() -> set[str]:
    """Return the flags and vendor of /proc/cpuinfo; an empty set if it does not exist."""
    flags: set[str] = set()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("flags", "features", "vendor_id")):
                flags.update(line.split(":", 1)[1].split())
    return flags
