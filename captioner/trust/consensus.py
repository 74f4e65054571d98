"""Consensus: rank a beam's sentences by their expected CIDEr.

CIDEr compares the n-grams of a sentence c with those of the references S of a photo (Vedantam et
al. 2015, equation 2). Let u(c) be the tf-idf vector of the sentence's n-grams (equation 1), divided
by its length. Then

    CIDEr_n(c, S) = u(c) . mean of u(s) over s in S

This is linear in the references, so the expected CIDEr for a photo without references needs only
the expected mean of u(s). A ridge regression predicts it from the mean of the photo's grid, for n
of 1 and 2. (Devlin et al. 2015 use the captions of similar photos instead.)

The coefficients are in the trust file, see captioner.trust.trust.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from captioner.trust.statistics import Statistics

if TYPE_CHECKING:
    from torch import Tensor

    from captioner.generation.beam_search import Hypothesis

ORDERS = (1, 2)
"""The n of the n-grams. Longer n-grams are too rare to help."""

NGram = tuple[int, ...]
T = TypeVar("T")


def n_grams(tokens: Sequence[T], order: int) -> Iterable[tuple[T, ...]]:
    """Iterate over the n-grams of a sentence of tokens or words, with repetitions."""
    return zip(*(tokens[at:] for at in range(order)), strict=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Consensus(Statistics):
    """A ridge regression from the mean of a grid to the expected references, for G n-grams.

    grams: (G, 2) integers, the tokens of each n-gram; the second is -1 for a unigram.
    rarity: (G,), the inverse document frequencies.
    usual: (G,), the mean of u(s) over the references of all photos.
    slopes: (G, D) int8, the change of that mean with each feature, in units of `scales`.
    scales: (G,), the units of the slopes.
    middle: (D,), the mean of the training photos' features.
    """

    grams: NDArray[Any]
    rarity: NDArray[Any]
    usual: NDArray[Any]
    slopes: NDArray[Any]
    scales: NDArray[Any]
    middle: NDArray[Any]

    def __post_init__(self) -> None:
        """Raise ValueError if the shapes or types do not fit together."""
        count, features = self.slopes.shape
        shapes = {"grams": (count, 2), "middle": (features,)}
        shapes |= dict.fromkeys(("rarity", "usual", "scales"), (count,))
        fit = all(getattr(self, name).shape == shape for name, shape in shapes.items())
        numbers = (self.rarity, self.usual, self.scales, self.middle)
        fit = fit and count > 0 and all(np.isfinite(array).all() for array in numbers)
        if not fit or self.slopes.dtype != np.int8 or self.grams.dtype.kind != "i":
            raise ValueError("the parts of its consensus do not fit together")

    @cached_property
    def _index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The keys of the n-grams in rising order, and their rows."""
        keys = _keys(*self.grams.astype(np.int64).T)
        rows = keys.argsort()
        return keys[rows], rows

    def choose(
        self, features: Tensor, beams: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Sort the sentences of B photos by expected CIDEr, best first.

        Args:
            features: (B, L, D), the photos' grids.
            beams: the sentences of each photo.
        """
        tokens = [[hypothesis.tokens for hypothesis in beam] for beam in beams]
        pairs = zip(beams, self.order(features, tokens), strict=True)
        return [[beam[at] for at in order] for beam, order in pairs]

    def order(self, features: Tensor, beams: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
        """Return, for each of B beams, the indices of its sentences in order of expected CIDEr."""
        offsets = features.float().mean(dim=1) - self.on(features.device)["middle"]
        return [
            sorted(range(len(expected)), key=expected.__getitem__, reverse=True)  # stable
            for expected in self.expect(offsets, beams)
        ]

    def expect(
        self, offsets: Tensor, beams: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        """Return the expected CIDEr, 0 to 1, of sentences.

        Args:
            offsets: (B, D), the means of the photos' grids minus `middle`.
            beams: the sentences of each photo, as tokens.
        """
        import torch

        tensors, device = self.on(offsets.device), offsets.device
        every, parts = self._weigh([tokens for beam in beams for tokens in beam])
        unique, inverse = np.unique(every, return_inverse=True)
        photos = np.repeat(np.arange(len(beams)), [len(beam) for beam in beams])
        rows, columns, images, weights = (
            torch.from_numpy(array).to(device)
            for array in (unique, inverse.reshape(every.shape), photos[:, np.newaxis], parts)
        )
        slopes = tensors["slopes"][rows] * tensors["scales"][rows].unsqueeze(1)
        expected = torch.addmm(tensors["usual"][rows], offsets, slopes.T)  # (B, rows)
        sums = (expected[images, columns] * weights).sum(dim=1) / len(ORDERS)
        values = iter(sums.tolist())
        return [[next(values) for _ in beam] for beam in beams]

    def _weigh(
        self, sentences: Sequence[Sequence[int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows (S, N) of all n-grams of S sentences, and their weights in u(c).

        Unknown n-grams have the weight 0. An n-gram that occurs twice is listed twice.
        """
        most = max([1, *map(len, sentences)])
        first = np.full((len(sentences), most), -1, np.int64)
        for row, tokens in zip(first, sentences, strict=True):
            row[: len(tokens)] = tokens
        second = np.full_like(first, -1)
        second[:, :-1] = first[:, 1:]
        keys = np.stack([_keys(first, -1), _keys(first, second)], axis=1)  # (S, 2, T)
        is_there = np.stack([first, second], axis=1) >= 0
        known_keys, known_rows = self._index
        places = np.searchsorted(known_keys, keys).clip(max=len(known_keys) - 1)
        is_known = is_there & (known_keys[places] == keys)
        rows = np.where(is_known, known_rows[places], 0)
        rarity = np.where(is_known, self.rarity[rows], self.rarity.max()) * is_there
        counts = (keys[..., np.newaxis] == keys[..., np.newaxis, :]).sum(axis=-1)
        lengths = np.sqrt((rarity**2 * counts).sum(axis=-1, keepdims=True))
        weights = np.where(is_known, rarity / np.maximum(lengths, 1e-12), 0)
        return rows.reshape(len(rows), -1), weights.reshape(len(rows), -1).astype(np.float32)


def _keys(first: Any, second: Any) -> Any:
    """Return one integer for each n-gram; the second token of a unigram is -1."""
    return (first << 32) + second + 1
