"""Arrays of a trust file, and their copies on the devices that compute with them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Statistics:
    """Base class of dataclasses of numpy arrays."""

    @cached_property
    def _copies(self) -> dict[torch.device, dict[str, Tensor]]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the arrays for pickling, without copies on devices."""
        return {name: value for name, value in vars(self).items() if name != "_copies"}

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """Return the arrays as tensors on a device, copied once; floats are float32."""
        import torch

        if device not in self._copies:
            arrays = {
                name: np.asarray(value)
                for name, value in vars(self).items()
                if isinstance(value, np.ndarray | np.generic)
            }
            self._copies[device] = {
                name: torch.as_tensor(
                    array, dtype=torch.float32 if array.dtype.kind == "f" else None
                ).to(device)
                for name, array in arrays.items()
            }
        return self._copies[device]
