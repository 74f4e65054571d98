"""ROUGE-L (Lin 2004) as COCO's caption evaluation defines it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

__all__ = ["common_words", "rouge_l", "rouge_of_each"]

Words = Sequence[str]

_BETA = 1.2  # COCO's: recall counts a little more than precision


def common_words(one: Words, other: Words) -> int:
    """Count the words of the longest common subsequence.

    By bits (Hyyrö 2004): a word of `other` costs a few operations on one long integer.
    """
    places: dict[str, int] = defaultdict(int)
    for place, word in enumerate(one):
        places[word] |= 1 << place
    row = (1 << len(one)) - 1
    for word in other:
        shared = row & places.get(word, 0)
        row = (row + shared) | (row - shared)
    return len(one) - (row & ((1 << len(one)) - 1)).bit_count()


def rouge_l(references: Sequence[Words], caption: Words) -> float:
    """Score one caption, 0 to 1: the best precision and the best recall of its references."""
    common = [common_words(reference, caption) for reference in references]
    return _score(common, [len(one) for one in references], len(caption))


def rouge_of_each(sentences: Sequence[Words]) -> list[float]:
    """Score each sentence of an image against the others."""
    lengths = [len(one) for one in sentences]
    # The words that two sentences have in common are the same either way round.
    common = {
        (at, to): common_words(sentences[at], sentences[to])
        for to in range(len(sentences))
        for at in range(to)
    }
    found = []
    for at, length in enumerate(lengths):
        others = [to for to in range(len(sentences)) if to != at]
        shared = [common[min(at, to), max(at, to)] for to in others]
        found.append(_score(shared, [lengths[to] for to in others], length))
    return found


def _score(common: Sequence[int], lengths: Sequence[int], length: int) -> float:
    """Score a caption of `length` words by those that it has in common with its references."""
    precision = max(common) / max(1, length)
    recall = max(n / max(1, many) for n, many in zip(common, lengths, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)
