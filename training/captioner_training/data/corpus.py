"""The data of a run: images, captions and vocabulary."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from captioner.vocabulary import Vocabulary
from captioner_training.data.captions import CaptionTable, encode_captions, starts_of
from captioner_training.data.images import CaptionedImage
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.recipe import DataConfig

OTHER_LANGUAGE = 0.5
"""Captions with a larger share of unknown words are taken for another language."""

_MIN_WORDS = 20  # fewer words do not show a language


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The images of a run, and the vocabulary of its model."""

    train: list[CaptionedImage]
    validation: list[CaptionedImage]
    vocabulary: Vocabulary

    def table(self, *, maximum_length: int, device: torch.device | None = None) -> CaptionTable:
        """Return the training captions as a tensor; see CaptionTable."""
        return CaptionTable(
            encode_captions(self.train, self.vocabulary),
            starts=starts_of(self.train, self.vocabulary),
            maximum_length=maximum_length,
            device=device,
        )

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
    """Return the share of the captions' words outside the vocabulary; 0 for fewer than 20 words."""
    words = [word for caption in captions for word in caption]
    if len(words) < _MIN_WORDS:
        return 0.0
    return sum(word not in vocabulary for word in words) / len(words)


def new_word_nats(
    images: Sequence[CaptionedImage],
    words: Vocabulary,
    before: Vocabulary,
    *,
    maximum_length: int,
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
