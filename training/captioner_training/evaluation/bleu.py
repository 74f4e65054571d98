"""BLEU (Papineni et al. 2002) from counts of each image, so that images can be drawn again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from captioner_training.evaluation.bootstrap import Table

__all__ = [
    "ORDERS",
    "bleu_counts",
    "bleu_of_each",
    "bleu_of_sums",
    "bleu_tables",
    "n_grams",
    "tables_of_counts",
]

Floats = NDArray[np.float64]
Words = Sequence[str]

ORDERS = (1, 2, 3, 4)
# pycocoevalcap's: an order without a match counts as next to nothing instead of as log 0.
_TINY, _SMALL = 1e-15, 1e-9


def n_grams(words: Words, order: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams of one order."""
    return Counter(zip(*(words[at:] for at in range(order)), strict=False))


class _Sentence(NamedTuple):
    """A sentence as BLEU sees it: its length, and its n-grams of each order."""

    length: int
    grams: tuple[Counter[tuple[str, ...]], ...]

    @classmethod
    def of(cls, words: Words) -> _Sentence:
        return cls(len(words), tuple(n_grams(words, order) for order in ORDERS))


def _row(mine: _Sentence, others: Sequence[_Sentence]) -> list[int]:
    matches = []
    for at, counted in enumerate(mine.grams):
        theirs = [other.grams[at] for other in others]
        clipped = (
            min(count, max(one.get(gram, 0) for one in theirs)) for gram, count in counted.items()
        )
        matches.append(sum(clipped))
    said = [max(0, mine.length - order + 1) for order in ORDERS]
    closest = min((abs(other.length - mine.length), other.length) for other in others)[1]
    return [*matches, *said, mine.length, closest]


def bleu_counts(references: Sequence[Words], caption: Words) -> list[int]:
    """Count what BLEU needs of one image.

    Returns:
        Clipped matches of the orders 1 to 4, n-grams said of the orders 1 to 4, words said, and
        words of the reference that is closest in length; the shorter one of two.

    """
    return _row(_Sentence.of(caption), [_Sentence.of(one) for one in references])


def bleu_of_each(sentences: Sequence[Words]) -> list[list[int]]:
    """Count for each sentence of an image what `bleu_counts` counts of it against the others."""
    made = [_Sentence.of(words) for words in sentences]
    return [_row(one, [*made[:at], *made[at + 1 :]]) for at, one in enumerate(made)]


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
    return tables_of_counts(np.array([bleu_counts(*pair) for pair in pairs], dtype=np.float64))


def tables_of_counts(rows: Floats) -> dict[str, Table]:
    """Make the tables of BLEU-1 to BLEU-4 from the `bleu_counts` (N, 10) of images."""
    return {f"BLEU-{order}": Table(rows, partial(bleu_of_sums, order=order)) for order in ORDERS}
