"""Whether a checkpoint knows which photos are like those that it has learned from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from captioner.errors import DataError, ImageError
from captioner.predictor import Captioner
from captioner_training.data.images import CaptionedImage
from captioner_training.data.loader import make_split_loader
from captioner_training.data.reading import read_dataset
from captioner_training.evaluation.bootstrap import with_intervals
from captioner_training.evaluation.calibration import rank_correlation

__all__ = ["auroc", "measure_familiarity", "pooled_grids", "some_photos"]

_BATCH = 32  # photos that are encoded at once


def some_photos(folders: Sequence[Path], split: str, count: int) -> list[CaptionedImage]:
    """Draw as many photos from every data set, the same each time.

    Raises:
        DataError: a data set cannot be read.

    """
    found: list[CaptionedImage] = []
    for folder in folders:
        images = read_dataset(folder, split=split)
        random.Random(0).shuffle(images)
        found += images[: -(-count // len(folders))]
    return found


def pooled_grids(
    captioner: Captioner, images: Sequence[CaptionedImage], *, workers: int = 2
) -> Tensor:
    """Encode photos and take the means (N, D) of their grids."""
    loader = make_split_loader(images, captioner.transform, workers=workers, batch_size=_BATCH)
    parts = [
        captioner.encode(pixels).features.float().mean(dim=1).cpu()
        for pixels, _ in tqdm(loader, desc="photos", leave=False, disable=None)
    ]
    return torch.cat(parts)


def measure_familiarity(
    captioner: Captioner, means: Tensor, quality: Sequence[float], *, unlike: Path | None
) -> dict[str, object]:
    """Ask whether unfamiliar photos get worse captions, and are told from other pictures.

    Args:
        captioner: that knows what is familiar.
        means: (N, D), of the grids of the photos.
        quality: CIDEr-D of each photo's caption, in percent.
        unlike: a folder of pictures of another kind; None: nothing is said of them.

    Returns:
        `rank_correlation` of nearness and CIDEr-D (Spearman), with its interval; with `unlike`
        `auroc` and how many pictures there are.

    Raises:
        DataError: the checkpoint has no statistics; the folder has no picture that can be opened.

    """
    known = captioner.familiarity
    if known is None:
        raise DataError("the checkpoint has no familiarity: run `captioner familiarity`")
    far = known.distances(means)
    near = rank_correlation(-far.double().numpy(), np.asarray(quality, np.float64))
    report = with_intervals({"rank_correlation": near})
    if unlike is not None:
        means = _means_of_pictures(captioner, unlike)
        report |= {"auroc": auroc(far, known.distances(means)), "unlike": len(means)}
    return report


def auroc(familiar: Tensor, strange: Tensor) -> float:
    """Say how often a strange picture is farther out than a familiar one; ties count half.

    The area under the ROC curve, from distances (N,) and (M,) of both kinds.
    """
    farther = (strange[:, None] > familiar).double() + 0.5 * (strange[:, None] == familiar)
    return float(farther.mean())


def _means_of_pictures(captioner: Captioner, folder: Path) -> Tensor:
    """Encode the pictures of a folder, and take the means (M, D) of their grids."""
    squares = []
    for path in sorted(folder.iterdir()):
        try:
            squares.append(captioner.prepare(path).pixels)
        except ImageError:
            continue
    if not squares:
        raise DataError(f"--unlike {folder} has no picture that can be opened")
    parts = torch.split(torch.stack(squares), _BATCH)
    return torch.cat([captioner.encode(part).features.float().mean(dim=1) for part in parts])
