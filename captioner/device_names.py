"""Devices and dtypes by name: what can be refused of them at once, without torch."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from captioner.errors import ConfigError, DeviceError

__all__ = ["DTYPE_NAMES", "check_device", "check_dtype", "unusable"]

DTYPE_NAMES = ("float32", "bfloat16")
"""What `--dtype` takes, beside auto."""

# What torch.device takes, less what no machine has any more.
_KINDS = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "ipu", "maia", "privateuseone")


def check_device(name: str) -> None:
    """Refuse what is no device, and a GPU where there is no driver of one.

    What else there is to know of a device, captioner.device.find_device finds out.

    Raises:
        DeviceError: this machine has no such device.

    """
    kind, colon, number = name.partition(":")
    if name == "auto":
        return
    if kind not in _KINDS or (colon and not number.isdecimal()):
        raise unusable(name, "no such kind of device")
    if kind == "cuda" and _has_no_driver():
        raise unusable(name, "this machine has no driver of a GPU")
    if kind == "mps" and sys.platform != "darwin":
        raise unusable(name, "only a Mac has it")


def check_dtype(name: str) -> None:
    """Refuse what is neither auto nor one of DTYPE_NAMES.

    Raises:
        ConfigError: it is not.

    """
    if name not in ("auto", *DTYPE_NAMES):
        raise ConfigError(f"dtype {name!r} is not one of auto, {', '.join(DTYPE_NAMES)}")


def unusable(name: str, reason: str) -> DeviceError:
    """Say why a device cannot be used, and what can."""
    return DeviceError(f"device {name!r} cannot be used here ({reason}): try auto, or cpu")


def _has_no_driver() -> bool:
    """Whether what torch loads for a GPU is not there; only Linux has one place for it."""
    if sys.platform != "linux" or Path("/dev/kfd").exists():  # the latter is AMD's
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False
