"""Learning what people would say of a photo; see captioner.trust.consensus."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from captioner.trust.consensus import ORDERS, Consensus, NGram, n_grams
from captioner.vocabulary import UNK, Vocabulary
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.ridge import Ridge, fewest_photos

__all__ = ["FEWEST_FOR_CONSENSUS", "fit_consensus"]

FEWEST_FOR_CONSENSUS = 3000
"""Photos of training. The bundled model's captions gain 2 points of CIDEr with so many, none with
1,000, and lose as many with 300 (docs/results.md)."""

_RIDGE = 0.3  # of a photo each; a third and three times as much cost a point of CIDEr at most
_STEPS = 127  # of slopes, either way: int8


def fit_consensus(
    pooled: NDArray[np.float32], images: Sequence[CaptionedImage], vocabulary: Vocabulary
) -> Consensus | None:
    """Learn what people would say of a photo; None where they say nothing twice.

    Args:
        pooled: (N, D + 1), the grids of training photos; see captioner.trust.familiarity.pool.
        images: these photos with their references.
        vocabulary: of the model.
    """
    said = [[vocabulary.encode(words) for words in image.words] for image in images]
    learned = [_rarities(said, order) for order in ORDERS]
    grams = [gram for each in learned for gram in each]
    if not grams:
        return None
    rarity = [one for each in learned for one in each.values()]
    means = np.concatenate(
        [
            _means(said, rarities, order, max(rarity))
            for rarities, order in zip(learned, ORDERS, strict=True)
        ],
        axis=1,
    )
    references = [len(each) for each in said]
    ridge = Ridge.fit(pooled, means, references, strength=_RIDGE)
    scales = np.abs(ridge.slopes).max(axis=0).clip(min=1e-12) / _STEPS
    return Consensus(
        grams=np.array([(*gram, -1)[: len(ORDERS)] for gram in grams], np.int32),
        rarity=np.array(rarity, np.float32),
        usual=ridge.usual.astype(np.float32),
        slopes=(ridge.slopes / scales).round().T.astype(np.int8),
        scales=scales.astype(np.float32),
        middle=ridge.middle.astype(np.float32),
    )


def _rarities(said: Sequence[Sequence[Sequence[int]]], order: int) -> dict[NGram, float]:
    """Give the inverse document frequencies of the n-grams that enough photos have."""
    photos = Counter(
        gram for each in said for gram in {one for tokens in each for one in n_grams(tokens, order)}
    )
    least = fewest_photos(len(said))
    return {
        gram: math.log(len(said) / count)
        for gram, count in photos.items()
        if count >= least and UNK not in gram
    }


def _means(
    said: Sequence[Sequence[Sequence[int]]],
    rarities: dict[NGram, float],
    order: int,
    rarest: float,
) -> NDArray[np.float32]:
    """Average each photo's u(s) over its references: (N, n-grams)."""
    columns = {gram: at for at, gram in enumerate(rarities)}
    means = np.zeros((len(said), len(rarities)), np.float32)
    for row, each in zip(means, said, strict=True):
        for tokens in each:
            counts = Counter(n_grams(tokens, order))
            weights = {gram: n * rarities.get(gram, rarest) for gram, n in counts.items()}
            length = math.hypot(*weights.values()) or 1.0
            for gram in weights.keys() & columns:
                row[columns[gram]] += weights[gram] / length / len(each)
    return means
