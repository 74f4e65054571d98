"""In which arithmetic a recipe computes: the recipe's own, or what the hardware is fast in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from captioner.device import best_dtype, find_dtype
from captioner_training.distributed import Processes
from captioner_training.recipe import Recipe

__all__ = ["autocast_of", "dtype_of", "settled", "told_precision"]


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Make the context in which a recipe computes."""
    fast = torch.bfloat16
    return torch.autocast(device.type, dtype=fast, enabled=dtype_of(recipe, device) is fast)


def dtype_of(recipe: Recipe, device: torch.device) -> torch.dtype:
    """Say in which dtype a recipe computes there; what is trained is float32."""
    return find_dtype(recipe.precision, device)


def settled(recipe: Recipe, processes: Processes, *, before: dict[str, Any] | None) -> Recipe:
    """Decide what the recipe leaves to the hardware, once for all processes of a run.

    Every process calls this.

    Args:
        recipe: as asked for.
        processes: of the run; the main one's hardware decides.
        before: the recipe of the run that goes on, which keeps to what was decided then.

    """
    if recipe.precision != "auto":
        return recipe
    precision = (before or {}).get("precision", "auto")
    if precision == "auto":
        precision = processes.broadcast(_name(dtype_of(recipe, processes.device)))
    return replace(recipe, precision=precision)


def told_precision(recipe: Recipe, device: torch.device) -> str:
    """Say for people in which dtype a recipe computes there, and what the hardware has."""
    dtype = dtype_of(recipe, device)
    fast, why = best_dtype(device)
    told = f"computing in {_name(dtype)}"
    return f"{told}: {why}" if dtype is fast else f"{told}, as this run is to, though {why}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
