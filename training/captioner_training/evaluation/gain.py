"""What a run has gained: its best checkpoint against the model before, photo by photo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from captioner.checkpoint import Checkpoint
from captioner_training.data.captioned import Captioned
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.split import caption_split
from captioner_training.losses.cider import CiderD
from captioner_training.recipe import Recipe

__all__ = ["captions_of", "measure_gain", "told"]


def captions_of(
    checkpoint: Checkpoint,
    images: Sequence[CaptionedImage],
    recipe: Recipe,
    *,
    autocast: torch.autocast,
) -> list[Captioned]:
    """Caption photos with a checkpoint as the run's validation does."""
    checkpoint.model.to(autocast.device)
    asked = replace(checkpoint, generation=recipe.generation)
    return caption_split(asked, images, autocast=autocast, workers=recipe.data.workers)


def measure_gain(
    best: Sequence[Captioned], origin: Sequence[Captioned] | None, *, split: str
) -> dict[str, Any]:
    """Compare the captions of both on a split, photo by photo.

    Returns:
        `split`, `images`; CIDEr-D in percent, with `intervals`: `after` the run, `before` it and
        their difference, the `gain`, where there was a model before.
    """
    images = [one.image for one in best]
    cider = CiderD([image.words for image in images])

    def scores(captioned: Sequence[Captioned]) -> np.ndarray[Any, Any]:
        return cider.score([image.words for image in images], [[one.words] for one in captioned])[
            :, 0
        ]

    after = scores(best)
    tables = {"after": mean_table(after, scale=100)}
    if origin is not None:
        before = scores(origin)
        tables["before"] = mean_table(before, scale=100)
        tables["gain"] = mean_table(after - before, scale=100)
    return {"split": split, "images": len(images), **summary(tables)}


def told(gain: Mapping[str, Any]) -> str:
    """Say in a sentence what was gained, how sure that is, and on which photos."""
    count = f"{gain['images']:,}"
    on = f"on {count} photos kept apart for it (test)"
    if gain["split"] != "test":
        on = f"on the {count} photos that chose the epoch: likely less on others"
    low, high = gain["intervals"]["gain" if "gain" in gain else "after"]
    if "gain" not in gain:
        return f"CIDEr {gain['after']:.1f} (between {low:.1f} and {high:.1f}), {on}"
    change = gain["gain"]
    verb = f"gained {change:.1f}" if change >= 0 else f"lost {-change:.1f}"
    chance = ", which may be chance" if low <= 0 <= high else ""
    return (
        f"CIDEr {gain['after']:.1f}, before the training {gain['before']:.1f}: the run {verb} "
        f"(between {low:.1f} and {high:.1f}{chance}), {on}"
    )
