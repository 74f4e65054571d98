"""The data of a run: its images, their captions, and the words that the model learns."""

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
from captioner_training.recipe import ANY_STYLE, DataConfig

__all__ = ["OTHER_LANGUAGE", "Corpus", "new_word_nats", "unknown_share"]

OTHER_LANGUAGE = 0.5
"""Captions with a larger share of unknown words are in another language."""

_RARE = 0.05  # a larger share of dropped words is worth a warning


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The images of a run and the words in their captions."""

    train: list[CaptionedImage]
    validation: list[CaptionedImage]
    vocabulary: Vocabulary

    def table(
        self,
        *,
        maximum_length: int,
        lengths: Sequence[int] = (),
        device: torch.device | None = None,
    ) -> CaptionTable:
        """Return the training captions as a tensor; see CaptionTable."""
        return CaptionTable(
            encode_captions(self.train, self.vocabulary),
            starts=starts_of(self.train, self.vocabulary),
            maximum_length=maximum_length,
            lengths=lengths,
            device=device,
        )

    def digest(self) -> str:
        """Tell these images and captions from others, wherever they lie."""
        digest = hashlib.sha256("\n".join(self.vocabulary.words).encode())
        for image in (*self.train, *self.validation):
            size = image.store.size(image.name)
            style = (image.style,) if self.vocabulary.styles else ()
            digest.update("\n".join((image.name, str(size), *image.captions, *style, "")).encode())
        return digest.hexdigest()[:16]

    def described(self, data: DataConfig) -> Iterator[str]:
        """Say how much there is, and what of it the model will not learn."""
        counts = Counter(word for image in self.train for words in image.words for word in words)
        known = {word: count for word, count in counts.items() if word in self.vocabulary}
        yield (
            f"{len(self.train):,} training images, {len(self.validation):,} validation images, "
            f"{len(self.vocabulary.ordinary_words):,} words"
        )
        if len(self.validation) == 1:
            yield (
                "note: CIDEr on a single validation photo is always 0, and only its cross-entropy "
                "tells one epoch from another: validate on more"
            )
        if styles := self.vocabulary.styles:
            usual = (ANY_STYLE,) if data.any_style > 0 else ()
            sets = (image.style or styles[0] for image in self.train)
            learned = dict.fromkeys((*usual, *sets))
            yield (
                f"captions are learned as {', '.join(learned)}; the model has the styles "
                f"{', '.join(styles)}, of which the first is the usual one"
            )
        dropped = sum(counts.values()) - sum(known.values())
        if dropped:
            share = dropped / sum(counts.values())
            line = (
                f"{len(counts) - len(known):,} of the {len(counts):,} words in the training "
                f"captions are rarer than data.minimum_count {data.minimum_count} and become "
                f"<unk>: {100 * share:.1f} % of the text"
            )
            if share > _RARE and data.minimum_count > 1:
                line += f"; for a set this small try --data.minimum_count {_threshold(counts)}"
            yield line
        lengths = [len(words) for image in self.train for words in image.words]
        if long := sum(length > data.maximum_length for length in lengths):
            yield (
                f"{long:,} of {len(lengths):,} captions are cut at data.maximum_length "
                f"{data.maximum_length} words; the longest has {max(lengths)}"
            )


def _threshold(counts: Counter[str]) -> int:
    """Find the highest threshold of 5 at most that drops little of the text."""
    total = sum(counts.values())
    for threshold in (4, 3, 2):
        if sum(count for count in counts.values() if count < threshold) <= _RARE * total:
            return threshold
    return 1


def unknown_share(captions: Iterable[Sequence[str]], known: Container[str]) -> float:
    """Return the share of the captions' words that is not known; 0 without words."""
    words = [word for caption in captions for word in caption]
    return sum(word not in known for word in words) / max(1, len(words))


def new_word_nats(
    images: Sequence[CaptionedImage],
    words: Vocabulary,
    before: Vocabulary,
    *,
    maximum_length: int,
) -> float:
    """Return the cross-entropy that a smaller vocabulary hides, in nats per token.

    A word outside the smaller vocabulary is <unk>, which is easy to predict. For a fair comparison
    it counts as <unk> followed by one of the new words, all equally likely.
    """
    new = {*words.ordinary_words} - {*before.ordinary_words}
    captions = [caption for image in images for caption in image.words]
    # With the end, which a caption that is cut has not.
    tokens = sum(len(one) + 1 if len(one) <= maximum_length else maximum_length for one in captions)
    hidden = sum(word in new for caption in captions for word in caption[:maximum_length])
    return hidden * math.log(max(1, len(new))) / max(1, tokens)
