"""Photos that a checkpoint has learned from, and whether it tells them from other pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from captioner.errors import DataError, ImageError
from captioner.predictor import Captioner
from captioner.trust.familiarity import pool
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import split_loader

__all__ = ["auroc", "measure_familiarity", "pooled_grids"]

_BATCH = 32  # photos that are encoded at once


def pooled_grids(captioner: Captioner, images: Sequence[CaptionedImage]) -> NDArray[np.float32]:
    """Encode photos and pool their grids: (N, D + 1), see captioner.trust.familiarity.pool."""
    loader = split_loader(images, captioner.transform, workers=2, batch_size=_BATCH)
    parts = [
        pool(captioner.encode(pixels).features).cpu().numpy()
        for pixels in tqdm(loader, desc="photos", leave=False, disable=None)
    ]
    return np.concatenate(parts)


def measure_familiarity(
    captioner: Captioner, pooled: NDArray[np.float32], unlike: Path
) -> dict[str, object]:
    """Ask whether photos are told from other pictures.

    Args:
        captioner: that knows what is familiar.
        pooled: (N, D + 1), the grids of the photos.
        unlike: a folder of pictures of another kind.

    Returns:
        `auroc`, and `unlike`, how many pictures there are.

    Raises DataError: the checkpoint does not know its photos; no picture can be opened.
    """
    if captioner.trust is None:
        raise DataError("the checkpoint does not know its photos: run `captioner trust`")
    others = _pooled_pictures(captioner, unlike)
    known, strange = (np.array(captioner.trust.familiarity.of(one)) for one in (pooled, others))
    return {"auroc": auroc(known, strange), "unlike": len(others)}


def auroc(familiar: NDArray[np.float64], strange: NDArray[np.float64]) -> float:
    """Say how often a strange picture is less familiar than a familiar one; ties count half.

    The area under the ROC curve, from the familiarity (N,) and (M,) of both kinds.
    """
    farther = (strange[:, None] < familiar) + 0.5 * (strange[:, None] == familiar)
    return float(farther.mean())


def _pooled_pictures(captioner: Captioner, folder: Path) -> NDArray[np.float32]:
    """Encode the pictures of a folder, and pool their grids: (M, D + 1)."""
    squares = []
    for path in sorted(folder.iterdir()):
        try:
            squares.append(captioner.prepare(path).pixels)
        except ImageError:
            continue
    if not squares:
        raise DataError(f"--unlike {folder} has no picture that can be opened")
    parts = (np.stack(squares[at : at + _BATCH]) for at in range(0, len(squares), _BATCH))
    pooled = [pool(captioner.encode(part).features).cpu().numpy() for part in parts]
    return np.concatenate(pooled)
