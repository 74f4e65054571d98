"""In which arithmetic a recipe computes on a device, and what a run's last digits depend on."""

from __future__ import annotations

import torch

from captioner.precision import best_dtype
from captioner_training.machinery.processes import Processes
from captioner_training.recipe import Recipe

__all__ = ["autocast_of", "conditions_of", "dtype_of", "told_precision"]


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """Make the context in which a recipe computes."""
    bf16 = torch.bfloat16
    return torch.autocast(device.type, dtype=bf16, enabled=dtype_of(recipe, device) is bf16)


def dtype_of(recipe: Recipe, device: torch.device) -> torch.dtype:
    """Say in which dtype a recipe computes there; what is trained is float32."""
    if recipe.precision == "auto":
        return best_dtype(device)[0]
    return torch.bfloat16 if recipe.precision == "bf16" else torch.float32


def told_precision(recipe: Recipe, device: torch.device) -> str:
    """Say for people in which dtype a recipe computes there, and why."""
    why = best_dtype(device)[1] if recipe.precision == "auto" else "as the recipe asks"
    return f"computing in {_name(dtype_of(recipe, device))}: {why}"


def conditions_of(recipe: Recipe, processes: Processes) -> str:
    """Say on what the last digits of a run depend, beside its recipe and its data."""
    return f"{processes.conditions}, {_name(dtype_of(recipe, processes.device))}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
