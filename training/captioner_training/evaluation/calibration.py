"""Calibration: whether what is said with probability p comes true in a share p of the cases.

Here of the next word of a reference, by teacher forcing; of the words of captions see trust.py. The
same pass gives the cross-entropy of the references: how surprised the model is by what people say.
It compares models that were trained to lower it, all alike: label smoothing and rewards ask for
something else, and raise it while captions get better.

Predictions are put into ten bins of equal width by their confidence. The expected calibration error
(Guo et al. 2017, section 2) is how far the mean confidence of a bin is from its share of right
ones, weighted by the bins' sizes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from captioner.decoders.decoder import Decoder
from captioner.vision.encoder import Grid
from captioner.vocabulary import PAD, Vocabulary
from captioner_training.data.captioned import Captioned
from captioner_training.data.captions import collate, encode_captions, starts_of
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.bootstrap import Floats, Table, mean_table, summary

__all__ = ["Calibration", "ForcedTokens", "force_references", "reliability"]

_BINS = 10


class ForcedTokens(NamedTuple):
    """The N tokens of references, ends of sentences among them, and the scores before each.

    logits: (N, words), float32; targets: (N,), the token that comes; image: (N,), the place of the
    image among those of the batch.
    """

    logits: Tensor
    targets: Tensor
    image: Tensor

    def nats(self) -> Tensor:
        """Give the cross-entropy (N,) of each token, in nats."""
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
    """Score every token of the images' references from what stands before it: teacher forcing.

    Args:
        decoder: in whatever arithmetic `autocast` gives it.
        grid: of the images.
        images: a batch.
        vocabulary: of the decoder.
        maximum_length: of references, in words; of a longer one the start counts.
        autocast: how the decoder computes.
    """
    captions = encode_captions(images, vocabulary)
    starts = starts_of(images, vocabulary)
    tokens = collate(captions, starts=starts, maximum_length=maximum_length)
    tokens = tokens.to(grid.features.device)
    targets = tokens[..., 1:]
    real = targets != PAD
    with autocast:
        deep = decoder(grid.features, tokens[..., :-1]).deep[real]
        logits = decoder.logits(deep).float()
    return ForcedTokens(logits, targets[real], real.nonzero()[:, 0])


class Calibration:
    """Compares the likeliest next token after each start of a reference with what comes there.

    Args:
        force: scores references, by what an image is encoded to and the image.
        tokens: all that the model has, in any order.
    """

    def __init__(
        self, force: Callable[[Any, Sequence[CaptionedImage]], ForcedTokens], tokens: Iterable[str]
    ) -> None:
        self._force = force
        self._tokens = "\n".join(sorted(tokens))
        self._parts: list[Tensor] = []  # rows of image, confidence, right or not, nats
        self._images = 0

    @torch.inference_mode()
    def add(self, encoded: Any, captioned: Sequence[Captioned]) -> None:
        """Compare on the references of the next images of the split."""
        forced = self._force(encoded, [caption.image for caption in captioned])
        best, word = forced.logits.softmax(dim=-1).max(dim=-1)
        columns = (self._images + forced.image, best, word == forced.targets, forced.nats())
        self._parts.append(torch.stack([one.double().cpu() for one in columns], dim=1))
        self._images += len(captioned)

    def result(self) -> dict[str, object]:
        """Say how well the probabilities come true.

        Returns:
            `tokens`, their number, with the ends of sentences; with `intervals` the `error`, the
            expected calibration error in percent, and the `cross_entropy` of the references in
            nats per token; `vocabulary_hash`, of the words in any order, because nats per token
            are comparable only between equal vocabularies; `bins`, see reliability.
        """
        image, confidence, right, _ = torch.cat(self._parts).numpy().T
        error, bins = reliability(confidence, right, image.astype(int), images=self._images)
        nats, tokens = self.cross_entropy()
        tables = {"error": error, "cross_entropy": mean_table(nats, tokens)}
        return {
            "tokens": len(image),
            "vocabulary_hash": hashlib.sha256(self._tokens.encode()).hexdigest()[:16],
            **summary(tables),
            "bins": bins,
        }

    def cross_entropy(self) -> tuple[Floats, Floats]:
        """Sum up each image's references: (images,), in nats, and (images,), their tokens."""
        nats = torch.cat(self._parts)[:, 3].numpy()
        return self._sums(nats), self._sums(np.ones_like(nats))

    def _sums(self, values: Floats) -> Floats:
        """Sum up values of tokens over each image: (images,)."""
        image = torch.cat(self._parts)[:, 0].numpy().astype(int)
        return np.bincount(image, values, minlength=self._images).astype(np.float64)


def reliability(
    confidence: ArrayLike, right: ArrayLike, image: ArrayLike, *, images: int
) -> tuple[Table, list[dict[str, float]]]:
    """Put predictions into bins by their confidence.

    Args:
        confidence: (N,), in 0..1, what was said of each prediction.
        right: (N,), in 0..1, how right it was: 1 or 0 where it is one or the other.
        image: (N,), to which image it belongs.
        images: how many there are.

    Returns:
        The expected calibration error, in percent; and of each bin that has predictions `count`,
        mean `confidence`, share `right`, 0 to 1.
    """
    said, true = np.asarray(confidence, np.float64), np.asarray(right, np.float64)
    bin_of = np.clip(np.ceil(said * _BINS).astype(int), 1, _BINS) - 1
    place = np.asarray(image) * _BINS + bin_of
    sums = [
        np.bincount(place, weights=one, minlength=images * _BINS).reshape(images, _BINS)
        for one in (np.ones_like(said), said, true)
    ]
    rows = np.concatenate(sums, axis=1).astype(np.float64)  # (images, 3 * bins)
    bins = [
        {"count": int(n), "confidence": float(c / n), "right": float(r / n)}
        for n, c, r in zip(*np.split(rows.sum(axis=0), 3), strict=True)
        if n
    ]
    return Table(rows, _error), bins


def _error(sums: Floats) -> Floats:
    count, said, true = np.split(sums, 3, axis=-1)
    total = np.maximum(count.sum(axis=-1), 1)
    found: Floats = 100 * np.abs(said - true).sum(axis=-1) / total
    return found
