"""The captions of a split as one integer tensor, and the data of a run: images and vocabulary."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from captioner.vocabulary import END, PAD, Vocabulary
from captioner_training.data.images import CaptionedImage
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.recipe import DataConfig

OTHER_LANGUAGE = 0.5
"""Captions with a larger share of unknown words are taken for another language."""

_MIN_WORDS = 20  # fewer words do not show a language
# A compiled loss is compiled again for every shape, and padding is work.
_MOST_CAPTIONS = 5
_LENGTHS = (0.5, 0.9, 1.0)  # quantiles of the images' longest captions


class CaptionTable:
    """The captions of N images as one tensor (N, K, T) on a device, padded with <pad>.

    A caption ends with <end>, except if it was cut, because the model must not learn to stop there.

    Args:
        captions: the captions of each image, as word numbers.
        starts: (N,), the start token of each image's captions.
        maximum_length: largest number of words; longer captions are cut.
    """

    def __init__(
        self,
        captions: Sequence[Sequence[Sequence[int]]],
        *,
        starts: Sequence[int],
        maximum_length: int,
        device: torch.device | None = None,
    ) -> None:
        framed = [
            [[*caption, END] if len(caption) <= maximum_length else caption[:maximum_length]
             for caption in image]
            for image in captions
        ]  # fmt: skip
        self.counts = np.array([len(image) for image in framed])
        self.longest = np.array([max(map(len, image)) for image in framed])
        tokens = np.full((len(framed), self.counts.max(), self.longest.max()), PAD, np.int32)
        for row, image in zip(tokens, framed, strict=True):
            for place, caption in enumerate(image):
                row[place, : len(caption)] = caption
        self._tokens = torch.from_numpy(tokens).to(device)
        self.starts = torch.tensor(starts, device=device)

    @classmethod
    def of(
        cls, images: Sequence[CaptionedImage], vocabulary: Vocabulary, **options: Any
    ) -> CaptionTable:
        """Encode the captions of images; `options` are those of the constructor."""
        captions = [[vocabulary.encode(words) for words in image.words] for image in images]
        return cls(captions, starts=starts_of(images, vocabulary), **options)

    @property
    def device(self) -> str:
        """The type of the tensor's device, such as "cpu"."""
        return self._tokens.device.type

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The number of captions of each image, and the length of the longest one."""
        return list(zip(self.counts.tolist(), self.longest.tolist(), strict=True))

    def batch(
        self, positions: Sequence[int], starts: Tensor | None = None, *, few_shapes: bool = False
    ) -> Tensor:
        """Return the tokens (B, K, T + 1) of the images at `positions`, start token first.

        Args:
            starts: (N,), replaces the start tokens of the table.
            few_shapes: give batches three shapes at most, with the first five captions of an image.
        """
        count, length = self.counts[positions].max(), self.longest[positions].max()
        if few_shapes:
            count = min(self.counts.max(), _MOST_CAPTIONS)
            lengths = np.quantile(self.longest, _LENGTHS, method="higher")
            length = lengths[np.searchsorted(lengths, length)]
        index = torch.tensor(positions).to(self._tokens.device, non_blocking=True)
        tokens = self._tokens[index, :count, :length].long()
        first = (self.starts if starts is None else starts)[index].unsqueeze(1)
        first = first.where(tokens[..., 0] != PAD, PAD)  # missing captions are all padding
        return torch.cat([first.unsqueeze(-1), tokens], dim=-1)


def starts_of(images: Iterable[CaptionedImage], vocabulary: Vocabulary) -> list[int]:
    """Return the start token of each image's style; unknown styles have the default token."""
    starts = {style: vocabulary.start(style) for style in ("", *vocabulary.styles)}
    return [starts.get(image.style, starts[""]) for image in images]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The images of a run, and the vocabulary of its model."""

    train: list[CaptionedImage]
    validation: list[CaptionedImage]
    vocabulary: Vocabulary

    def digest(self) -> str:
        """Return a hash of images, captions and vocabulary; it does not depend on paths."""
        digest = hashlib.sha256("\n".join(self.vocabulary.words).encode())
        for image in (*self.train, *self.validation):
            size = image.store.size(image.name)
            style = (image.style,) if self.vocabulary.styles else ()
            digest.update("\n".join((image.name, str(size), *image.captions, *style, "")).encode())
        return digest.hexdigest()[:16]

    def describe(self, data: DataConfig) -> Iterator[str]:
        """Yield messages: the size of the data, styles, rare words and long captions."""
        counts = Counter(word for image in self.train for words in image.words for word in words)
        rare = {word: count for word, count in counts.items() if word not in self.vocabulary}
        yield (
            f"{len(self.train):,} training images, {len(self.validation):,} validation images, "
            f"{len(self.vocabulary.ordinary_words):,} words"
        )
        if (count := len(self.validation)) < MIN_IMAGES:
            yield (
                f"note: CIDEr needs {MIN_IMAGES} validation photos, the run has {count}: the "
                "cross-entropy decides which epoch is the best"
            )
        if rare:
            share = sum(rare.values()) / sum(counts.values())
            yield (
                f"{len(rare):,} of {len(counts):,} words in the training captions become <unk> "
                f"(data.minimum_count {data.minimum_count}): {100 * share:.1f} % of the text"
            )
        lengths = [len(words) for image in self.train for words in image.words]
        if long := sum(length > data.maximum_length for length in lengths):
            yield (
                f"{long:,} of {len(lengths):,} captions are longer than data.maximum_length "
                f"{data.maximum_length} and are cut; the longest has {max(lengths)} words"
            )


def unknown_share(captions: Iterable[Sequence[str]], vocabulary: Container[str]) -> float:
    """Return the share of the captions' words outside the vocabulary; 0 for too few words."""
    words = [word for caption in captions for word in caption]
    unknown = sum(word not in vocabulary for word in words)
    return unknown / len(words) if len(words) >= _MIN_WORDS else 0.0


def new_word_nats(
    images: Sequence[CaptionedImage], words: Vocabulary, before: Vocabulary, *, maximum_length: int
) -> float:
    """Return the cross-entropy that the smaller vocabulary `before` hides, in nats per token.

    A word outside `before` becomes <unk>, which is easy to predict. So it counts as <unk> followed
    by one of the new words, all equally likely.
    """
    new = {*words.ordinary_words} - {*before.ordinary_words}
    captions = [caption for image in images for caption in image.words]
    # A cut caption has no <end>.
    lengths = [len(caption) for caption in captions]
    tokens = sum(n + 1 if n <= maximum_length else maximum_length for n in lengths)
    hidden = sum(word in new for caption in captions for word in caption[:maximum_length])
    return hidden * math.log(max(1, len(new))) / max(1, tokens)
