"""The gain of a run: its best checkpoint compared with the model it started from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from captioner.terminal import counted
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.losses.cider import MIN_IMAGES


def measure_gain(
    after: Sequence[float], before: Sequence[float] | None, *, split: str
) -> dict[str, Any]:
    """Compare the CIDEr-D of each image of a split after a run and before it, in percent.

    Returns `split`, `images`, the mean score `after`, and `intervals`. If the run started from a
    model, also the mean score `before`, and `gain`, the mean difference over images.
    """
    tables = {"after": mean_table(after)}
    if before is not None:
        tables["before"] = mean_table(before)
        tables["gain"] = mean_table(np.subtract(after, before))
    return {"split": split, "images": len(after), **summary(tables)}


def describe_gain(gain: Mapping[str, Any]) -> str:
    """Describe a gain, its interval and its photos in one line."""
    photos = f"on {counted(gain['images'], 'test photo')}"
    if gain["split"] != "test":
        photos = (
            f"on the {counted(gain['images'], 'validation photo')} that chose the epoch (usually "
            "lower on other photos)"
        )
    if gain["images"] < MIN_IMAGES:
        return (
            f"CIDEr is not measured: it needs {MIN_IMAGES} photos, and there "
            f"{'is' if gain['images'] == 1 else 'are'} {gain['images']}"
        )
    low, high = gain["intervals"]["gain" if "gain" in gain else "after"]
    if "gain" not in gain:
        return f"CIDEr {gain['after']:.1f} ({low:.1f} to {high:.1f}) {photos}"
    change = gain["gain"]
    verb = f"gained {change:.1f}" if change >= 0 else f"lost {-change:.1f}"
    chance = ", may be chance" if low <= 0 <= high else ""
    return (
        f"CIDEr {gain['after']:.1f}, before training {gain['before']:.1f}: {verb} "
        f"({low:.1f} to {high:.1f}{chance}) {photos}"
    )
