"""CIDEr-D (Vedantam et al. 2015, section 5): how well captions match references in n-grams.

The numbers are those of pycocoevalcap's CiderScorer, computed for many captions of many images at
once, without Java and fast enough to be the reward of every training step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CiderD", "Words"]

Words = Sequence[str]

_ORDERS = (1, 2, 3, 4)
_SIGMA = 6.0  # words: how gently a difference in length is penalised
_CHUNK = 500  # images that are compared at once: bounds the memory
# An n-gram is one 64-bit number, 16 bits a word.
_BITS, _LAST = 16, 2**16 - 1

_Keys = NDArray[np.uint64]
_Floats = NDArray[np.float64]


class _Table(NamedTuple):
    """How common the n-grams of one order are: their keys, sorted, and log(document frequency)."""

    keys: _Keys
    log_frequency: _Floats


class CiderD:
    """Scores captions, with n-grams weighted by how few images of a corpus they occur in.

    Words beyond the 65,535 most frequent of the corpus count as one and the same.

    Args:
        corpus: of each image its references as words. The document frequencies come from here:
            the training references for a reward, the scored references for a score.
    """

    def __init__(self, corpus: Sequence[Sequence[Words]]) -> None:
        frequent = Counter(word for image in corpus for words in image for word in words)
        self._ids = {
            word: min(number, _LAST) for number, (word, _) in enumerate(frequent.most_common())
        }
        self._log_images = np.log(float(len(corpus)))
        image = np.repeat(np.arange(len(corpus)), [len(each) for each in corpus])
        tokens, lengths = self._pad([words for each in corpus for words in each])
        self._tables = [_table(tokens, lengths, image, order) for order in _ORDERS]

    def score(
        self, references: Sequence[Sequence[Words]], captions: Sequence[Sequence[Words]]
    ) -> _Floats:
        """Score K captions of each of B images against the image's references.

        Returns:
            (B, K), 0 to 10; 100 times the mean over images is what papers call CIDEr.
        """
        return np.concatenate(
            [
                self._score(references[at : at + _CHUNK], captions[at : at + _CHUNK])
                for at in range(0, len(captions), _CHUNK)
            ]
        )

    def _score(
        self, references: Sequence[Sequence[Words]], captions: Sequence[Sequence[Words]]
    ) -> _Floats:
        counts = np.array([len(each) for each in references])
        found: _Floats = self._compare(references, captions).sum(axis=2) / counts[:, None]
        return found

    def _compare(
        self, references: Sequence[Sequence[Words]], captions: Sequence[Sequence[Words]]
    ) -> _Floats:
        """Score captions against each reference alone: (B, K, R); one that is not there gives 0."""
        images, drawn = len(captions), len(captions[0])
        most = max(len(each) for each in references)
        counts = np.array([len(each) for each in references])
        padded = [
            words
            for image in range(images)
            for words in (
                *captions[image],
                *references[image],
                *[()] * (most - counts[image]),  # a reference without words agrees with nothing
            )
        ]
        tokens, lengths = self._pad(padded)
        bigrams = np.maximum(lengths - 1, 0).reshape(images, drawn + most)
        apart = bigrams[:, :drawn, None] - bigrams[:, None, drawn:]
        penalty = np.exp(-(apart.astype(np.float64) ** 2) / (2 * _SIGMA**2))
        total = np.zeros((images, drawn, most))
        for order in _ORDERS:
            total += self._similarity(tokens, lengths, images, drawn, order)
        total *= penalty * 10 / len(_ORDERS)
        return total

    def _similarity(
        self, tokens: _Keys, lengths: NDArray[np.int64], images: int, drawn: int, order: int
    ) -> _Floats:
        """Compare the tf-idf vectors of one order: (B, K, R), cosines with clipped counts."""
        keys, row = _grams(tokens, lengths, order)
        each = len(lengths) // images
        known, gram = np.unique(keys, return_inverse=True)
        # A column for every n-gram of an image, so that its sentences become rows of a matrix.
        pairs, column = np.unique(row // each * max(1, len(known)) + gram, return_inverse=True)
        image, gram = pairs // max(1, len(known)), pairs % max(1, len(known))
        starts = np.searchsorted(image, np.arange(images + 1))
        width = max(1, int(np.diff(starts).max(initial=0)))
        place = np.arange(len(pairs)) - starts[image]
        weight = np.zeros((images, width))
        weight[image, place] = self._log_images - self._log_frequency(known[gram], order)
        flat = np.bincount(row * width + place[column], minlength=len(lengths) * width)
        vectors = flat.reshape(images, each, width) * weight[:, None, :]
        norms = np.sqrt((vectors**2).sum(axis=2))
        given, wanted = vectors[:, :drawn, None], vectors[:, None, drawn:]
        shared = (np.minimum(given, wanted) * wanted).sum(axis=3)
        scale = norms[:, :drawn, None] * norms[:, None, drawn:]
        cosines: _Floats = np.divide(shared, scale, out=np.zeros_like(shared), where=scale > 0)
        return cosines

    def _log_frequency(self, keys: _Keys, order: int) -> _Floats:
        """Look n-grams up; one that no reference of the corpus has counts as seen once."""
        table = self._tables[order - 1]
        if not len(table.keys):
            return np.zeros(len(keys))
        at = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
        return np.where(table.keys[at] == keys, table.log_frequency[at], 0.0)

    def _pad(self, sentences: Sequence[Words]) -> tuple[_Keys, NDArray[np.int64]]:
        """Number the words: (sentences, longest), and the lengths."""
        lengths = np.array([len(words) for words in sentences], dtype=np.int64)
        tokens = np.zeros((len(sentences), max(1, int(lengths.max(initial=0)))), dtype=np.uint64)
        filled = np.arange(tokens.shape[1]) < lengths[:, None]
        tokens[filled] = list(self._number(word for words in sentences for word in words))
        return tokens, lengths

    def _number(self, words: Iterable[str]) -> Iterable[int]:
        new: dict[str, int] = {}  # words that the corpus lacks differ from one another all the same
        for word in words:
            known = self._ids.get(word)
            if known is None:
                known = min(new.setdefault(word, len(self._ids) + len(new)), _LAST)
            yield known


def _grams(
    tokens: _Keys, lengths: NDArray[np.int64], order: int
) -> tuple[_Keys, NDArray[np.int64]]:
    """List the n-grams of all sentences as keys, and the sentence that each stands in."""
    places = tokens.shape[1] - order + 1
    if places < 1:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
    keys = np.zeros((len(tokens), places), dtype=np.uint64)
    for offset in range(order):
        keys = (keys << np.uint64(_BITS)) | tokens[:, offset : offset + places]
    inside = np.arange(places) < (lengths - order + 1)[:, None]
    row = np.broadcast_to(np.arange(len(tokens))[:, None], keys.shape)
    return keys[inside], row[inside]


def _table(
    tokens: _Keys, lengths: NDArray[np.int64], image: NDArray[np.int64], order: int
) -> _Table:
    """Count in how many images each n-gram of one order occurs."""
    keys, row = _grams(tokens, lengths, order)
    known = _distinct(keys)
    pairs = _distinct(image[row] * max(1, len(known)) + np.searchsorted(known, keys))
    frequency = np.bincount(pairs % max(1, len(known)), minlength=len(known))
    return _Table(known, np.log(frequency.astype(np.float64)))


def _distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Sort them, each once: for millions a tenth of the time of numpy's unique, which hashes."""
    ordered = np.sort(values)
    new = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return np.compress(new, ordered)
