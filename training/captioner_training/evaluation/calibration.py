"""Calibration: whether words said with probability p come true in a share p of the cases.

A temperature divides the scores of all words before the softmax (Guo et al. 2017, section 4.2). It
is chosen by how well it tells whether the likeliest word is right, and not by the likelihood of all
words, which label smoothing has pulled elsewhere. Each half of the images is calibrated with the
temperature that is best for the other half, so that the error after calibration is of images that
the temperature has not seen.

The same pass gives the cross-entropy of the references: how surprised the model is by what people
say. It needs no captions of its own, and tells models apart on fewer images than CIDEr does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from captioner.decoders.decoder import Decoder
from captioner.encoder import Grid
from captioner.vocabulary import PAD, Vocabulary
from captioner_training.data.dataset import collate, encode_captions
from captioner_training.evaluation.bootstrap import mean_table
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.reliability import measure_reliability

__all__ = ["TEMPERATURES", "Calibration", "cross_fitted"]

Floats = NDArray[np.float64]

# Tried one by one: near its best the likelihood is so flat that 0.05 more or less changes nothing.
TEMPERATURES = tuple(round(0.6 + 0.05 * step, 2) for step in range(19))


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
        self._decoder, self._autocast = decoder, autocast
        self._vocabulary, self._maximum_length = vocabulary, maximum_length
        self._parts: list[tuple[Tensor, ...]] = []
        self._images = 0

    @torch.inference_mode()
    def add(self, grid: Grid, captioned: Sequence[Captioned]) -> None:
        """Compare on the references of the next images of the split, with their grids."""
        captions = encode_captions([one.image for one in captioned], self._vocabulary)
        batch = collate(grid.features, captions, maximum_length=self._maximum_length)
        tokens = batch.tokens.to(grid.features.device)
        targets = tokens[..., 1:]
        said = targets != PAD
        with self._autocast:
            deep = self._decoder(grid.features, tokens[..., :-1]).deep[said]
            logits = self._decoder.logits(deep).float()
        owner = self._images + said.nonzero()[:, 0]
        self._parts.append((owner, *_at_temperatures(logits, targets[said])))
        self._images += len(captioned)

    def result(self) -> dict[str, object]:
        """Say how well the probabilities come true.

        Returns:
            `tokens`: how many were compared, the ends of sentences among them; in percent, with
            `intervals`: `confidence` and `accuracy`, the mean probability of the likeliest word,
            and how often the reference says it; `error`, the expected calibration error, and
            `error_calibrated`, the same after calibration; `cross_entropy` of the references, in
            nats a token; `vocabulary`, a digest of the words, since only with the same words are
            nats a token comparable; `temperature`, the best for all images; `bins` and
            `bins_calibrated`, see reliability_bins.

        """
        owner, right, confidence, surprise = (self._all(at) for at in range(4))
        nats, tokens = self.cross_entropy()
        setting, best = cross_fitted(surprise, owner.astype(int) % 2)
        measured = measure_reliability(
            confidence[:, TEMPERATURES.index(1.0)],
            np.take_along_axis(confidence, setting[:, None], axis=1)[:, 0],
            right,
            owner.astype(int),
            images=self._images,
            share="accuracy",
            beside={"cross_entropy": mean_table(nats, tokens)},
        )
        words = hashlib.sha256("\n".join(self._vocabulary.words).encode()).hexdigest()[:16]
        return {
            "tokens": len(right),
            "vocabulary": words,
            "temperature": TEMPERATURES[best],
            **measured,
        }

    def cross_entropy(self) -> tuple[Floats, Floats]:
        """Sum up each image's references: (images,), in nats, and (images,), their tokens."""
        owner, nats = self._all(0).astype(int), self._all(4)
        total = np.zeros((2, self._images))
        np.add.at(total[0], owner, nats)
        np.add.at(total[1], owner, 1)
        return total[0], total[1]

    def _all(self, at: int) -> Floats:
        """Join what was noted of every batch."""
        found: Floats = torch.cat([part[at] for part in self._parts]).cpu().double().numpy()
        return found


def _at_temperatures(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compare the logits (N, words) of N tokens with what people wrote.

    Returns:
        right (N,): whether the likeliest word is it; confidence and surprise (N, T), at every
        temperature; and the cross-entropy (N,) in nats.

    """
    best, word = logits.max(dim=-1)
    right = word == wanted
    confidence = torch.stack(
        [
            (best / temperature - (logits / temperature).logsumexp(dim=-1)).exp()
            for temperature in TEMPERATURES
        ],
        dim=1,
    )
    sure = confidence.clamp(1e-6, 1 - 1e-6)
    surprise = -torch.where(right[:, None], sure.log(), torch.log1p(-sure))
    return right, confidence, surprise, F.cross_entropy(logits, wanted, reduction="none")


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
