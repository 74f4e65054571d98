"""Calibration: whether words said with probability p come true in a share p of the cases.

A temperature divides the scores of all words before the softmax (Guo et al. 2017, section 4.2). It
is chosen by how well it tells whether the likeliest word is right, and not by the likelihood of all
words, which label smoothing has pulled elsewhere. Each half of the images is calibrated with the
temperature that is best for the other half, so that the error after calibration is of images that
the temperature has not seen.

The same pass gives the cross-entropy of the references: how surprised the model is by what people
say. It compares models that were trained to lower it, all alike: label smoothing and rewards ask
for something else, and raise it while captions get better.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from captioner.decoders.decoder import Decoder
from captioner.vision.encoder import Grid
from captioner.vocabulary import SPECIAL_TOKENS, Vocabulary
from captioner_training.evaluation.bootstrap import mean_table
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.references import Foreseen, foresee
from captioner_training.evaluation.reliability import measure_reliability

__all__ = ["TEMPERATURES", "Calibration", "cross_fitted"]

Floats = NDArray[np.float64]

# Tried one by one: near its best the likelihood is so flat that 0.05 more or less changes nothing.
TEMPERATURES = tuple(round(0.6 + 0.05 * step, 2) for step in range(19))


class _Compared(NamedTuple):
    """N tokens of references, and what the model thought of them.

    image: (N,), to which each belongs; right: (N,), whether the likeliest word is it; confidence
    and surprise: (N, T), of the likeliest word at every temperature, and by its being right or
    wrong; nats: (N,), the cross-entropy of the token.
    """

    image: Tensor
    right: Tensor
    confidence: Tensor
    surprise: Tensor
    nats: Tensor


class Calibration:
    """Compares the likeliest next word after each start of a reference with what comes there.

    Args:
        decoder: of the captions.
        vocabulary: of the model.
        maximum_length: of references, in words; of a longer one the start counts.
        autocast: how the decoder computes.

    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        vocabulary: Vocabulary,
        maximum_length: int,
        autocast: torch.autocast,
    ) -> None:
        self._vocabulary = vocabulary
        self._foresee = partial(
            foresee,
            decoder,
            vocabulary=vocabulary,
            maximum_length=maximum_length,
            autocast=autocast,
        )
        self._parts: list[_Compared] = []
        self._images = 0

    @torch.inference_mode()
    def add(self, grid: Grid, captioned: Sequence[Captioned]) -> None:
        """Compare on the references of the next images of the split, with their grids."""
        foreseen = self._foresee(grid, [one.image for one in captioned])
        self._parts.append(_compare(foreseen, first=self._images))
        self._images += len(captioned)

    def result(self) -> dict[str, object]:
        """Say how well the probabilities come true.

        Returns:
            `tokens`: how many were compared, the ends of sentences among them; in percent, with
            `intervals`: `confidence` and `accuracy`, the mean probability of the likeliest word,
            and how often the reference says it; `error`, the expected calibration error, and
            `error_calibrated`, the same after calibration; `cross_entropy` of the references, in
            nats a token; `vocabulary_hash`, of the words in any order, since only with the same
            words are nats a token comparable; `temperature`, the best for all images; `bins` and
            `bins_calibrated`, see reliability_bins.

        """
        image, confidence = self._image(), self._joined("confidence")
        setting, best = cross_fitted(self._joined("surprise"), image % 2)
        right = self._joined("right")
        measured = measure_reliability(
            confidence[:, TEMPERATURES.index(1.0)],
            np.take_along_axis(confidence, setting[:, None], axis=1)[:, 0],
            right,
            image,
            images=self._images,
            share="accuracy",
            beside={"cross_entropy": mean_table(*self.cross_entropy())},
        )
        words = "\n".join(sorted((*SPECIAL_TOKENS, *self._vocabulary.ordinary_words)))
        return {
            "tokens": len(right),
            "vocabulary_hash": hashlib.sha256(words.encode()).hexdigest()[:16],
            "temperature": TEMPERATURES[best],
            **measured,
        }

    def cross_entropy(self) -> tuple[Floats, Floats]:
        """Sum up each image's references: (images,), in nats, and (images,), their tokens."""
        image, nats = self._image(), self._joined("nats")
        return (
            np.bincount(image, nats, minlength=self._images).astype(np.float64),
            np.bincount(image, minlength=self._images).astype(np.float64),
        )

    def _image(self) -> NDArray[np.int_]:
        return self._joined("image").astype(int)

    def _joined(self, name: str) -> Floats:
        """Put together what was noted of every batch."""
        parts = [getattr(part, name) for part in self._parts]
        found: Floats = torch.cat(parts).cpu().double().numpy()
        return found


def _compare(foreseen: Foreseen, *, first: int) -> _Compared:
    """Compare what was foreseen with what people wrote; `first` is the batch's first image."""
    logits = foreseen.logits
    best, word = logits.max(dim=-1)
    right = word == foreseen.wanted
    confidence = torch.stack(
        [
            (best / temperature - (logits / temperature).logsumexp(dim=-1)).exp()
            for temperature in TEMPERATURES
        ],
        dim=1,
    )
    sure = confidence.clamp(1e-6, 1 - 1e-6)
    surprise = -torch.where(right[:, None], sure.log(), torch.log1p(-sure))
    return _Compared(first + foreseen.image, right, confidence, surprise, foreseen.nats())


def cross_fitted(surprise: Floats, half: NDArray[np.int_]) -> tuple[NDArray[np.int_], int]:
    """Choose the settings of the least surprise.

    Args:
        surprise: (N, S), of each prediction under each of S settings.
        half: (N,), 0 or 1, the half of the images that it belongs to.

    Returns:
        (N,), for each prediction the setting that is best for the other half; and the best of all.

    """
    sums = np.stack([surprise[half == part].sum(axis=0) for part in (0, 1)])
    return sums.argmin(axis=1)[1 - half], int(sums.sum(axis=0).argmin())
