"""Every generator of random numbers of a process, taken down and set again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["capture_random", "restore_random"]


def capture_random(device: torch.device) -> dict[str, Any]:
    """Take down every generator of random numbers of this process."""
    version, words, gauss = random.getstate()
    numpy: dict[str, Any] = dict(np.random.get_state(legacy=False))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "python": (version, words, gauss),
        "numpy": {
            **{name: numpy[name] for name in ("bit_generator", "has_gauss", "gauss")},
            "key": torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
            "pos": numpy["state"]["pos"],
        },
    }


def restore_random(state: Mapping[str, Any], device: torch.device) -> None:
    """Set every generator of random numbers of this process as it was."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy = dict(state["numpy"])
    numpy["state"] = {"key": numpy.pop("key").numpy().astype(np.uint32), "pos": numpy.pop("pos")}
    np.random.set_state(numpy)
