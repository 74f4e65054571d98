"""CIDEr-D (Vedantam et al. 2015, section 5): the n-gram similarity of captions to references.

The scores equal those of pycocoevalcap's CiderScorer. All operations are tensor operations on word
numbers, so that rewards are computed on the GPU without synchronization.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = Sequence[str]

MIN_IMAGES = 5
"""Least number of images for a meaningful score; of one image it is always 0."""

_ORDERS = (1, 2, 3, 4)
_SIGMA = 6.0  # width, in words, of the Gaussian penalty on the difference in length
_CHUNK = 64  # images that are compared at once, to bound the memory
# An n-gram is one 64-bit number, 16 bits per word.
_BITS, _LAST = 16, 2**16 - 1
_PAD, _ABSENT = -1, -2  # padding after the last word, and in place of missing references


class _Table(NamedTuple):
    """The n-grams of one order: sorted keys and their log(document frequency)."""

    keys: Tensor
    log_frequency: Tensor


class _Grams(NamedTuple):
    """The n-grams of sentences: keys, counts in the sentence, and squared idf, each (B, S, P)."""

    keys: Tensor
    counts: Tensor
    squared_idf: Tensor


class CiderD:
    """Scores captions with n-grams weighted by their rarity in a corpus.

    All words beyond the 65,535 most frequent ones of the corpus count as the same word.

    Args:
        corpus: the references of each image, as words, for the document frequencies. For a reward
            these are the training references, for a score the scored references.
        device: the device that `compare` runs on; the CPU for MPS, which has no float64.
    """

    def __init__(
        self, corpus: Sequence[Sequence[Words]], *, device: torch.device | str = "cpu"
    ) -> None:
        if torch.device(device).type == "mps":
            device = "cpu"
        frequent = Counter(word for image in corpus for words in image for word in words)
        self._numbers = {word: number for number, (word, _) in enumerate(frequent.most_common())}
        self._log_images = float(np.log(len(corpus)))
        image = torch.arange(len(corpus)).repeat_interleave(
            torch.tensor([len(references) for references in corpus], dtype=torch.int64)
        )
        tokens = self._pad([words for references in corpus for words in references])
        tables = (_table(tokens, image, order) for order in _ORDERS)
        self._tables = [_Table(*(part.to(device) for part in table)) for table in tables]

    def score(
        self, references: Sequence[Sequence[Words]], captions: Sequence[Sequence[Words]]
    ) -> NDArray[np.float64]:
        """Score K captions of each of B images against the image's references: (B, K), 0 to 10.

        Papers report 100 times the mean as CIDEr.
        """
        chunks = [slice(first, first + _CHUNK) for first in range(0, len(captions), _CHUNK)]
        scores = [
            self.compare(self.number(captions[chunk]), self.number(references[chunk]))
            for chunk in chunks
        ]
        return torch.cat(scores).cpu().numpy()

    def number(self, images: Sequence[Sequence[Words]]) -> Tensor:
        """Return the word numbers of S sentences per image: (B, S, T) int64 on the CPU, padded.

        Words outside the corpus get numbers of their own, the same in all calls.
        """
        most = max(len(sentences) for sentences in images)
        tokens = self._pad([words for sentences in images for words in sentences])
        counts = torch.tensor([len(sentences) for sentences in images])
        present = torch.arange(most) < counts[:, None]
        padded = tokens.new_full((len(images), most, tokens.shape[1]), _ABSENT)
        padded[present] = tokens
        return padded

    def compare(self, captions: Tensor, references: Tensor) -> Tensor:
        """Score captions (B, K, T) against references (B, R, T'), both from `number`: (B, K)."""
        device = self._tables[0].keys.device
        captions = captions.to(device, torch.int64, non_blocking=True)
        references = references.to(device, torch.int64, non_blocking=True)
        total = sum(self._similarity(captions, references, order) for order in _ORDERS)
        lengths = [(tokens >= 0).sum(dim=-1) for tokens in (captions, references)]
        bigrams = [(length - 1).clamp(min=0).double() for length in lengths]
        difference = bigrams[0][:, :, None] - bigrams[1][:, None, :]
        total = total * torch.exp(-(difference**2) / (2 * _SIGMA**2)) * 10 / len(_ORDERS)
        present = (references[..., 0] != _ABSENT).sum(dim=-1, keepdim=True)
        return total.sum(dim=-1) / present

    def _similarity(self, captions: Tensor, references: Tensor, order: int) -> Tensor:
        """Return the cosines (B, K, R) of the tf-idf vectors of one order, with clipped counts.

        A sum over distinct n-grams is computed as a sum over places. If an n-gram occurs n times,
        each of its places has the weight 1 / n.
        """
        given, wanted = self._grams(captions, order), self._grams(references, order)
        equal = given.keys[:, :, None, :, None] == wanted.keys[:, None, :, None, :]
        matches = (equal & (wanted.counts > 0)[:, None, :, None, :]).sum(dim=-1)  # (B, K, R, P)
        counts = given.counts[:, :, None, :]
        clipped = torch.minimum(counts, matches) * matches
        weight = given.squared_idf[:, :, None, :] / counts.clamp(min=1)
        shared = (clipped * weight).sum(dim=-1)
        norms = [(grams.counts * grams.squared_idf).sum(dim=-1).sqrt() for grams in (given, wanted)]
        scale = norms[0][:, :, None] * norms[1][:, None, :]
        return torch.where(scale > 0, shared / scale.where(scale > 0, 1), 0.0)

    def _grams(self, tokens: Tensor, order: int) -> _Grams:
        """Return the n-grams of sentences (B, S, T); padding has count 0 and idf 0."""
        keys, valid = _keys(tokens, order)
        equal = keys[..., :, None] == keys[..., None, :]
        counts = (equal & valid[..., None, :]).sum(dim=-1) * valid
        idf = (self._log_images - self._log_frequency(keys, order)) * valid
        return _Grams(keys, counts, idf**2)

    def _log_frequency(self, keys: Tensor, order: int) -> Tensor:
        """Return log(document frequency) of n-grams; the frequency outside the corpus is 1."""
        table = self._tables[order - 1]
        if not len(table.keys):
            return torch.zeros(keys.shape, dtype=torch.float64, device=keys.device)
        place = torch.searchsorted(table.keys, keys).clamp(max=len(table.keys) - 1)
        return torch.where(table.keys[place] == keys, table.log_frequency[place], 0.0)

    def _pad(self, sentences: Sequence[Words]) -> Tensor:
        """Return the word numbers of sentences: (S, longest) int64, padded with _PAD."""
        lengths = torch.tensor([len(words) for words in sentences], dtype=torch.int64)
        longest = max(1, int(lengths.max())) if len(sentences) else 1
        tokens = torch.full((len(sentences), longest), _PAD, dtype=torch.int64)
        numbers = [self._number(word) for words in sentences for word in words]
        tokens[torch.arange(longest) < lengths[:, None]] = torch.tensor(numbers, dtype=torch.int64)
        return tokens

    def _number(self, word: str) -> int:
        return min(self._numbers.setdefault(word, len(self._numbers)), _LAST)


def _keys(tokens: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Return the n-grams of sentences (..., T) as keys (..., P), and whether each is complete."""
    places = max(0, tokens.shape[-1] - order + 1)
    keys = tokens.new_zeros((*tokens.shape[:-1], places))
    for offset in range(order if places else 0):
        keys = (keys << _BITS) | (tokens[..., offset : offset + places] & _LAST)
    return keys, tokens[..., order - 1 :] >= 0


def _table(tokens: Tensor, image: Tensor, order: int) -> _Table:
    """Count the images that each n-gram of one order occurs in."""
    keys, valid = _keys(tokens, order)
    keys, order_of_keys = keys[valid].sort(stable=True)
    # Sentences are in the order of their images, and the stable sort keeps this order.
    images = image[:, None].expand(valid.shape)[valid][order_of_keys]
    first = torch.ones(len(keys), dtype=torch.bool)
    first[1:] = keys[1:] != keys[:-1]
    other_image = first.clone()
    other_image[1:] |= images[1:] != images[:-1]
    frequency = torch.bincount(first.cumsum(dim=0)[other_image] - 1)
    return _Table(keys[first], frequency.double().log())
