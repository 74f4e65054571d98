"""Calibration: whether predictions of probability p are right in a share p of the cases.

The predictions are the next words of references, with teacher forcing. measure_trust.py measures
the calibration of trust in generated words. The same pass measures their cross-entropy.
Compare it only between models trained with the plain cross-entropy loss. Label smoothing and
self-critical training can improve captions and still raise it.

Predictions are sorted into ten bins of equal width by confidence. The expected calibration error
(Guo et al. 2017, section 2) is the absolute difference between the mean confidence of a bin and its
share of right predictions, averaged over the bins with their sizes as weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from captioner.captioner import Captioner
from captioner.model.decoder import Decoder
from captioner.model.encoder import Grid
from captioner.vocabulary import PAD, Vocabulary
from captioner_training.data.captions import CaptionTable
from captioner_training.data.images import Captioned, CaptionedImage
from captioner_training.evaluation.bootstrap import mean_table, summary

_BINS = 10


class ForcedTokens(NamedTuple):
    """The N tokens of references, including ends of sentences, and their predictions.

    logits: (N, V), float32.
    targets: (N,), the tokens.
    image: (N,), for each token, the index of its image in the batch.
    """

    logits: Tensor
    targets: Tensor
    image: Tensor

    def nats(self) -> Tensor:
        """Return the cross-entropy (N,) of each token in nats."""
        return F.cross_entropy(self.logits, self.targets, reduction="none")


@torch.inference_mode()
def force_references(
    decoder: Decoder,
    grid: Grid,
    images: Sequence[CaptionedImage],
    *,
    vocabulary: Vocabulary,
    maximum_length: int,
    autocast: torch.autocast,
) -> ForcedTokens:
    """Predict every token of the references from the tokens before it (teacher forcing).

    References of more than `maximum_length` words are truncated. `grid` has the grids of `images`.
    """
    table = CaptionTable.of(images, vocabulary, maximum_length=maximum_length)
    tokens = table.batch(range(len(images))).to(grid.features.device)
    targets = tokens[..., 1:]
    real = targets != PAD
    with autocast:
        deep = decoder(grid.features, tokens[..., :-1]).deep[real]
        logits = decoder.logits(deep).float()
    return ForcedTokens(logits, targets[real], real.nonzero()[:, 0])


class Calibration:
    """Measures the calibration of next-token predictions over a split.

    References of more than `maximum_length` words are truncated.
    """

    def __init__(self, captioner: Captioner, *, maximum_length: int) -> None:
        self._captioner, self._maximum_length = captioner, maximum_length
        self._parts: list[Tensor] = []  # columns: image, confidence, right or not, nats
        self._images = 0

    @torch.inference_mode()
    def add(self, grid: Grid, captioned: Sequence[Captioned]) -> None:
        """Add the references of the next images of the split, given their grids."""
        forced = force_references(
            self._captioner.model.decoder,
            grid,
            [caption.image for caption in captioned],
            vocabulary=self._captioner.vocabulary,
            maximum_length=self._maximum_length,
            autocast=torch.autocast(self._captioner.device.type, enabled=False),
        )
        confidence, token = forced.logits.softmax(dim=-1).max(dim=-1)
        columns = (self._images + forced.image, confidence, token == forced.targets, forced.nats())
        self._parts.append(torch.stack([column.double().cpu() for column in columns], dim=1))
        self._images += len(captioned)

    def result(self) -> dict[str, object]:
        """Return the calibration over all images.

        Returns:
            `tokens`: the number of tokens.
            `error`: the expected calibration error in percent. It has no interval: it is biased
                upwards, most of all in bootstrap samples.
            `cross_entropy`: in nats per token; its 95 % interval is in `intervals`.
            `bins`: see reliability.
        """
        image, confidence, right, nats = torch.cat(self._parts).numpy().T
        error, bins = reliability(confidence, right)
        sums, counts = (
            np.bincount(image.astype(int), weights, minlength=self._images)
            for weights in (nats, np.ones_like(nats))
        )
        tables = {"cross_entropy": mean_table(sums, counts)}
        return {"tokens": len(right), "error": error, **summary(tables), "bins": bins}


def reliability(confidence: ArrayLike, right: ArrayLike) -> tuple[float, list[dict[str, float]]]:
    """Sort predictions into bins by their confidence.

    Args:
        confidence: (N,), 0 to 1.
        right: (N,), 0 to 1: whether, or to what degree, each prediction is right.

    Returns:
        The expected calibration error in percent, and for each bin with predictions its `count`,
        mean `confidence` and share `right`, 0 to 1.
    """
    predicted, true = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    bin_of = np.clip(np.ceil(predicted * _BINS).astype(int), 1, _BINS) - 1
    count, predicted_sum, true_sum = (
        np.bincount(bin_of, weights=values, minlength=_BINS)
        for values in (np.ones_like(predicted), predicted, true)
    )
    bins = [
        {"count": int(n), "confidence": float(c / n), "right": float(r / n)}
        for n, c, r in zip(count, predicted_sum, true_sum, strict=True)
        if n
    ]
    error = 100 * np.abs(predicted_sum - true_sum).sum() / max(len(predicted), 1)
    return float(error), bins
