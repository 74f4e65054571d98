"""Where a model runs."""

from __future__ import annotations

import torch

from captioner.device_names import unusable

__all__ = ["find_device"]


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
        raise unusable(str(name), reason) from error
    return device
