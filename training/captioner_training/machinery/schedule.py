"""The learning rate: a linear warm-up, then half a cosine (Loshchilov and Hutter 2017)."""

from __future__ import annotations

import math

__all__ = ["warmup_cosine"]


def warmup_cosine(step: int, *, steps: int, warmup: int, floor: float = 0.01) -> float:
    """Say by what the peak rate is multiplied at a step.

    Args:
        step: from 0.
        steps: of the whole stage.
        warmup: steps that climb to the peak.
        floor: the share of the peak that is left at the end.

    """
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))
