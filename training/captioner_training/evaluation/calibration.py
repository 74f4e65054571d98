"""Calibration: whether what is said with probability p comes true in a share p of the cases.

Asked of two things. Of the next word of a reference (`Calibration`), by teacher forcing; the same
pass gives the cross-entropy of the references: how surprised the model is by what people say. It
compares models that were trained to lower it, all alike: label smoothing and rewards ask for
something else, and raise it while captions get better. And of the captions that a model made
(`measure_confidence`): of their words, of whole captions, and whether a caption's score tells how
good it is.

Predictions are put into ten bins of equal width by their confidence. The expected calibration error
(Guo et al. 2017, section 2) is how far the mean confidence of a bin is from its share of right
ones, weighted by the bins' sizes. A temperature divides the scores of all words before the softmax
(section 4.2 there). It is chosen by how well it tells whether the likeliest word is right, and not
by the likelihood of all words, which label smoothing has pulled elsewhere. Each half of the images
is calibrated with the temperature that is best for the other half, so that the error after
calibration is of images that the temperature has not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from captioner.decoders.decoder import Decoder
from captioner.vision.encoder import Grid
from captioner.vocabulary import PAD, SPECIAL_TOKENS, Vocabulary
from captioner_training.data.dataset import collate, encode_captions, starts_of
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.bootstrap import (
    RESAMPLES,
    Estimate,
    Floats,
    Table,
    mean_table,
    summary,
    with_intervals,
)
from captioner_training.evaluation.captioned import Captioned

__all__ = [
    "Calibration",
    "ForcedTokens",
    "coverage_curve",
    "cross_fitted",
    "force_references",
    "measure_confidence",
    "rank_correlation",
    "reliability",
]

_BINS = 10
# Tried one by one: near its best the likelihood is so flat that 0.05 more or less changes nothing.
_TEMPERATURES = tuple(round(0.6 + 0.05 * step, 2) for step in range(19))
# A probability p becomes p ** (1 / T): with T above 1 everything is more likely than it was said.
_POWERS = np.round(np.geomspace(0.2, 5.0, 41), 3)
_COVERAGES = tuple(share / 20 for share in range(1, 21))


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
    batch = collate(grid.features, captions, starts=starts, maximum_length=maximum_length)
    tokens = batch.tokens.to(grid.features.device)
    targets = tokens[..., 1:]
    real = targets != PAD
    with autocast:
        deep = decoder(grid.features, tokens[..., :-1]).deep[real]
        logits = decoder.logits(deep).float()
    return ForcedTokens(logits, targets[real], real.nonzero()[:, 0])


class Calibration:
    """Compares the likeliest next word after each start of a reference with what comes there.

    Arguments are those of force_references.
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
        self._force = partial(
            force_references,
            decoder,
            vocabulary=vocabulary,
            maximum_length=maximum_length,
            autocast=autocast,
        )
        self._parts: list[dict[str, Tensor]] = []
        self._images = 0

    @torch.inference_mode()
    def add(self, grid: Grid, captioned: Sequence[Captioned]) -> None:
        """Compare on the references of the next images of the split, with their grids."""
        forced = self._force(grid, [one.image for one in captioned])
        best, word = forced.logits.max(dim=-1)
        right = word == forced.targets
        confidence = torch.stack(
            [
                (best / temperature - (forced.logits / temperature).logsumexp(dim=-1)).exp()
                for temperature in _TEMPERATURES
            ],
            dim=1,
        )
        sure = confidence.clamp(1e-6, 1 - 1e-6)
        surprise = -torch.where(right[:, None], sure.log(), torch.log1p(-sure))
        self._parts.append(
            {
                "image": self._images + forced.image, "right": right, "nats": forced.nats(),
                "confidence": confidence, "surprise": surprise,
            }
        )  # fmt: skip
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
            `bins_calibrated`, see reliability.

        """
        image, confidence = self._all("image").astype(int), self._all("confidence")
        setting, best = cross_fitted(self._all("surprise"), image % 2)
        words = "\n".join(sorted((*SPECIAL_TOKENS, *self._vocabulary.ordinary_words)))
        return {
            "tokens": len(image),
            "vocabulary_hash": hashlib.sha256(words.encode()).hexdigest()[:16],
            "temperature": _TEMPERATURES[best],
            **_before_and_after(
                confidence[:, _TEMPERATURES.index(1.0)],
                np.take_along_axis(confidence, setting[:, None], axis=1)[:, 0],
                self._all("right"),
                image,
                images=self._images,
                share="accuracy",
                beside={"cross_entropy": mean_table(*self.cross_entropy())},
            ),
        }

    def cross_entropy(self) -> tuple[Floats, Floats]:
        """Sum up each image's references: (images,), in nats, and (images,), their tokens."""
        image = self._all("image").astype(int)
        sums = (
            np.bincount(image, weights, minlength=self._images).astype(np.float64)
            for weights in (self._all("nats"), None)
        )
        return next(sums), next(sums)

    def _all(self, name: str) -> Floats:
        """Put together what was noted of every batch."""
        found: Floats = torch.cat([part[name] for part in self._parts]).cpu().double().numpy()
        return found


def measure_confidence(
    captioned: Sequence[Captioned], quality: Sequence[float]
) -> dict[str, object]:
    """Ask whether a caption's own probability tells how good it is.

    Args:
        captioned: a split.
        quality: CIDEr-D of each caption, in percent.

    Returns:
        `words`: are they in a reference as often as their probabilities say; `captions`: the same
        of whole captions, for the mean share of their words; `rank_correlation` of the mean
        log-probability and CIDEr-D over the images (Spearman), with its interval; `coverage`: see
        coverage_curve.

    """
    means = np.array([float(one.hypothesis.log_probabilities.mean()) for one in captioned])
    said: list[tuple[float, bool, int]] = []  # the probability of a word, in a reference, its image
    for at, one in enumerate(captioned):
        known = {word for words in one.image.words for word in words}
        logs = one.hypothesis.log_probabilities.tolist()
        pairs = zip(one.words, logs, strict=False)  # the end of the sentence is no word
        said += [(np.exp(log), word in known, at) for word, log in pairs]
    probabilities, true = (np.array([each[at] for each in said], float) for at in (0, 1))
    image = np.array([at for *_, at in said], dtype=int)
    images = len(captioned)
    count = np.maximum(np.bincount(image, minlength=images), 1)
    share = np.bincount(image, true, minlength=images) / count
    values = np.asarray(quality, np.float64)
    return {
        "words": _calibrated(probabilities, true, image, images=images),
        "captions": _calibrated(np.exp(means), share, np.arange(images), images=images),
        **with_intervals({"rank_correlation": rank_correlation(means, values)}),
        "coverage": coverage_curve(means, values),
    }


def _calibrated(
    said: Floats, right: Floats, image: NDArray[np.int_], *, images: int
) -> dict[str, object]:
    """Calibrate by a power of the probability, each half of the images by the other."""
    powered = np.clip(said[:, None], 1e-6, 1 - 1e-6) ** (1 / _POWERS)
    surprise = -(right[:, None] * np.log(powered) + (1 - right[:, None]) * np.log1p(-powered))
    setting, best = cross_fitted(surprise, image % 2)
    after = np.take_along_axis(powered, setting[:, None], axis=1)[:, 0]
    measured = _before_and_after(said, after, right, image, images=images, share="right")
    return {"count": len(said), "temperature": float(_POWERS[best]), **measured}


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


def _before_and_after(
    said: Floats,
    calibrated: Floats,
    right: Floats,
    image: NDArray[np.int_],
    *,
    images: int,
    share: str,
    beside: Mapping[str, Table] | None = None,
) -> dict[str, object]:
    """Tell how confident predictions were and how often right, before and after calibration.

    Arguments as of reliability; `share` names the share that was right, `beside` has other scores
    of the same images, which are drawn again together with these.
    """
    error, bins = reliability(said, right, image, images=images)
    error_after, bins_after = reliability(calibrated, right, image, images=images)
    count = np.bincount(image, minlength=images)
    tables = {
        "confidence": mean_table(np.bincount(image, said, minlength=images), count, scale=100),
        share: mean_table(np.bincount(image, right, minlength=images), count, scale=100),
        "error": error,
        "error_calibrated": error_after,
        **(beside or {}),
    }
    return {**summary(tables), "bins": bins, "bins_calibrated": bins_after}


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


def rank_correlation(one: Floats, other: Floats, *, seed: int = 0) -> Estimate:
    """Correlate ranks (Spearman), with the interval of a bootstrap over the pairs.

    nan where one of them is the same everywhere.
    """
    chance = np.random.default_rng(seed)
    draws = [chance.integers(len(one), size=len(one)) for _ in range(RESAMPLES)]
    drawn = [_spearman(one[index], other[index]) for index in draws]
    return Estimate.of(_spearman(one, other), drawn)


def _spearman(one: Floats, other: Floats) -> float:
    ranks = np.stack([_ranks(one), _ranks(other)])
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    lengths = np.sqrt((centred**2).sum(axis=1))
    return float(centred[0] @ centred[1] / lengths.prod()) if lengths.all() else float("nan")


def _ranks(values: Floats) -> Floats:
    """Rank values; equal ones share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: Floats = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return found


def coverage_curve(scores: Floats, quality: Floats) -> list[dict[str, float]]:
    """Say how good the captions are that are left when those with the lowest scores are kept back.

    The risk-coverage curve of El-Yaniv and Wiener 2010, upside down.

    Returns:
        For shares of the captions, those with the highest scores first: `coverage`, and `quality`,
        the mean of theirs; `ideal`, what could be reached by knowing the quality itself.

    """
    mine, ideal = quality[np.argsort(-scores, kind="stable")], np.sort(quality)[::-1]
    sizes = {share: max(1, round(share * len(mine))) for share in _COVERAGES}
    return [
        {
            "coverage": share,
            "quality": float(mine[:size].mean()),
            "ideal": float(ideal[:size].mean()),
        }
        for share, size in sizes.items()
    ]
