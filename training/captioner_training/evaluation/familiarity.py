"""Measure whether familiarity separates photos from pictures of another kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from captioner.captioner import Captioner
from captioner.errors import DataError, ImageError
from captioner.trust.familiarity import pool
from captioner_training.data.images import CaptionedImage
from captioner_training.data.pixels import split_loader

_BATCH = 32


def pooled_grids(captioner: Captioner, images: Sequence[CaptionedImage]) -> NDArray[np.float32]:
    """Return the pooled grids (N, D + 1) of photos; see captioner.trust.familiarity.pool."""
    loader = split_loader(images, captioner.transform, workers=2, batch_size=_BATCH)
    parts = [
        pool(captioner.encode(pixels).features)
        for pixels in tqdm(loader, desc="photos", leave=False, disable=None)
    ]
    return np.concatenate(parts)


def measure_familiarity(
    captioner: Captioner, pooled: NDArray[np.float32], unlike: Path
) -> dict[str, object]:
    """Compare the familiarity of photos with that of other pictures.

    Args:
        captioner: a captioner with trust.
        pooled: (N, D + 1), the pooled grids of the photos.
        unlike: a folder of pictures of another kind.

    Returns `auroc`, the area under the ROC curve, and `unlike`, the number of pictures.

    Raises DataError: the checkpoint has no familiarity, or no picture can be opened.
    """
    if captioner.trust is None:
        raise DataError("the checkpoint has no familiarity: run `captioner trust`")
    pictures = _pooled_pictures(captioner, unlike)
    familiarity = captioner.trust.familiarity
    area = auroc(np.array(familiarity.of(pooled)), np.array(familiarity.of(pictures)))
    return {"auroc": area, "unlike": len(pictures)}


def auroc(familiar: NDArray[np.float64], strange: NDArray[np.float64]) -> float:
    """Return the area under the ROC curve for familiarities (N,) and (M,); ties count half."""
    lower = (strange[:, None] < familiar) + 0.5 * (strange[:, None] == familiar)
    return float(lower.mean())


def _pooled_pictures(captioner: Captioner, folder: Path) -> NDArray[np.float32]:
    """Return the pooled grids (M, D + 1) of the pictures of a folder."""
    squares = []
    for path in sorted(folder.iterdir()):
        try:
            squares.append(captioner.prepare(path).pixels)
        except ImageError:
            continue
    if not squares:
        raise DataError(f"--unlike {folder}: no picture can be opened")
    parts = (np.stack(squares[at : at + _BATCH]) for at in range(0, len(squares), _BATCH))
    pooled = [pool(captioner.encode(part).features) for part in parts]
    return np.concatenate(pooled)
