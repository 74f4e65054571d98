"""The data of a run: its images, their captions, and the words that the model learns."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from captioner.vocabulary import Vocabulary
from captioner_training.data.dataset import NumberedCaptions, encode_captions, starts_of
from captioner_training.data.images import CaptionedImage
from captioner_training.recipe import ANY_STYLE, DataConfig, Stage

__all__ = ["Corpus", "Learned", "Sentence"]

_RARE = 0.05  # a larger share of dropped words is worth a warning


class Sentence(NamedTuple):
    """A caption without a photo."""

    words: tuple[str, ...]
    style: str


class Learned(NamedTuple):
    """What a stage learns from: of each of its items the captions, and the token they begin with.

    captions: as numbers of words.
    """

    captions: NumberedCaptions
    starts: list[int]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The images of a run and the words in their captions; captions without an image."""

    train: list[CaptionedImage]
    validation: list[CaptionedImage]
    vocabulary: Vocabulary
    text: tuple[Sentence, ...] = ()

    def learned(self, stage: Stage) -> Learned:
        """Give what a stage learns from: the training images, or one caption after the other."""
        return self._sentences if stage.text else self._images

    @cached_property
    def _images(self) -> Learned:
        return Learned(
            encode_captions(self.train, self.vocabulary), starts_of(self.train, self.vocabulary)
        )

    @cached_property
    def _sentences(self) -> Learned:
        starts = [self.vocabulary.start(one.style) for one in self.text]
        for each, start in zip(*self._images, strict=True):
            starts += [start] * len(each)
        texts = (self.vocabulary.encode(one.words) for one in self.text)
        captions = chain(texts, chain.from_iterable(self._images.captions))
        return Learned(NumberedCaptions([caption] for caption in captions), starts)

    def digest(self) -> str:
        """Tell these images and captions from others, wherever they lie."""
        digest = hashlib.sha256("\n".join(self.vocabulary.words).encode())
        for image in (*self.train, *self.validation):
            size = image.store.size(image.name)
            style = (image.style,) if self.vocabulary.styles else ()
            digest.update("\n".join((image.name, str(size), *image.captions, *style, "")).encode())
        for words, style_name in self.text:
            digest.update(" ".join((style_name, *words, "\n")).encode())
        return digest.hexdigest()[:16]

    def described(self, data: DataConfig) -> Iterator[str]:
        """Say how much there is, and what of it the model will not learn."""
        counts = Counter(word for image in self.train for words in image.words for word in words)
        known = {word: count for word, count in counts.items() if word in self.vocabulary}
        yield (
            f"{len(self.train):,} training images, {len(self.validation):,} validation images, "
            f"{len(self.vocabulary.ordinary_words):,} words"
        )
        if self.text:
            yield f"{len(self.text):,} captions without photos"
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
