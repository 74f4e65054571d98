"""Fit the consensus of captioner.trust: predict the n-grams of a photo's references."""

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

References = Sequence[Sequence[Sequence[int]]]
"""The references of each photo as token ids."""

FEWEST_FOR_CONSENSUS = 3000
"""Least number of training photos. With fewer, consensus does not help (docs/results.md)."""

_RIDGE = 0.3  # strength of the regularisation per photo
_STEPS = 127  # largest int8


def fit_consensus(
    pooled: NDArray[np.float32], images: Sequence[CaptionedImage], vocabulary: Vocabulary
) -> Consensus | None:
    """Fit the expected n-grams of a photo by ridge regression from its pooled grid.

    Args:
        pooled: (N, D + 1), pooled grids of training photos; see captioner.trust.familiarity.pool.
        images: the same photos with their references.
        vocabulary: the vocabulary of the model.

    Returns None if no n-gram occurs in enough photos.
    """
    references = [[vocabulary.encode(words) for words in image.words] for image in images]
    rarities = [_rarities(references, order) for order in ORDERS]
    grams = [gram for rarity_of in rarities for gram in rarity_of]
    if not grams:
        return None
    rarity = [value for rarity_of in rarities for value in rarity_of.values()]
    means = np.concatenate(
        [
            _means(references, rarity_of, order, max(rarity))
            for rarity_of, order in zip(rarities, ORDERS, strict=True)
        ],
        axis=1,
    )
    counts = [len(captions) for captions in references]
    ridge = Ridge.fit(pooled, means, counts, strength=_RIDGE)
    scales = np.abs(ridge.slopes).max(axis=0).clip(min=1e-12) / _STEPS
    return Consensus(
        grams=np.array([(*gram, -1)[: len(ORDERS)] for gram in grams], np.int32),
        idf=np.array(rarity, np.float32),
        mean_references=ridge.usual.astype(np.float32),
        coefficients=(ridge.slopes / scales).round().T.astype(np.int8),
        scales=scales.astype(np.float32),
        feature_mean=ridge.middle.astype(np.float32),
    )


def _rarities(references: References, order: int) -> dict[NGram, float]:
    """Return the inverse document frequencies of the n-grams that enough photos have."""
    photos = Counter(
        gram
        for captions in references
        for gram in {gram for tokens in captions for gram in n_grams(tokens, order)}
    )
    least = fewest_photos(len(references))
    return {
        gram: math.log(len(references) / count)
        for gram, count in photos.items()
        if count >= least and UNK not in gram
    }


def _means(
    references: References, rarities: dict[NGram, float], order: int, rarest: float
) -> NDArray[np.float32]:
    """Return the mean of the normalised tf-idf vectors of a photo's references: (N, n-grams)."""
    columns = {gram: at for at, gram in enumerate(rarities)}
    means = np.zeros((len(references), len(rarities)), np.float32)
    for row, captions in zip(means, references, strict=True):
        for tokens in captions:
            counts = Counter(n_grams(tokens, order))
            weights = {gram: n * rarities.get(gram, rarest) for gram, n in counts.items()}
            length = math.hypot(*weights.values()) or 1.0
            for gram in weights.keys() & columns:
                row[columns[gram]] += weights[gram] / length / len(captions)
    return means
