"""BLEU (Papineni et al. 2002) from counts of each image, so that images can be drawn again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from captioner_training.evaluation.bootstrap import Table

__all__ = ["ORDERS", "bleu_counts", "bleu_of_sums", "bleu_tables", "n_grams"]

Floats = NDArray[np.float64]
Words = Sequence[str]

ORDERS = (1, 2, 3, 4)
# pycocoevalcap's: an order without a match counts as next to nothing instead of as log 0.
_TINY, _SMALL = 1e-15, 1e-9


def n_grams(words: Words, order: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams of one order."""
    return Counter(zip(*(words[at:] for at in range(order)), strict=False))


def bleu_counts(references: Sequence[Words], caption: Words) -> list[int]:
    """Count what BLEU needs of one image.

    Returns:
        Clipped matches of the orders 1 to 4, n-grams said of the orders 1 to 4, words said, and
        words of the reference that is closest in length; the shorter one of two.

    """
    matches, said = [], []
    for order in ORDERS:
        mine = n_grams(caption, order)
        most: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            most |= n_grams(reference, order)
        matches.append((mine & most).total())
        said.append(max(0, len(caption) - order + 1))
    closest = min((abs(len(one) - len(caption)), len(one)) for one in references)[1]
    return [*matches, *said, len(caption), closest]


def bleu_of_sums(sums: Floats, *, order: int) -> Floats:
    """Work out corpus BLEU in percent from sums (..., 10) of `bleu_counts` over images."""
    precision = (sums[..., :order] + _TINY) / (sums[..., 4 : 4 + order] + _SMALL)
    ratio = (sums[..., 8] + _TINY) / (sums[..., 9] + _SMALL)
    brevity = np.exp(np.minimum(0, 1 - 1 / ratio))
    found: Floats = 100 * brevity * np.exp(np.log(precision).mean(axis=-1))
    return found


def bleu_tables(
    references: Sequence[Sequence[Words]], captions: Sequence[Words]
) -> dict[str, Table]:
    """Make the tables of BLEU-1 to BLEU-4 from tokens."""
    pairs = zip(references, captions, strict=True)
    rows = np.array([bleu_counts(*pair) for pair in pairs], dtype=np.float64)
    return {f"BLEU-{order}": Table(rows, partial(bleu_of_sums, order=order)) for order in ORDERS}
