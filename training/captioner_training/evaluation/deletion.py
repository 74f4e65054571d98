"""The deletion test over a whole split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from captioner.deletion import WordEffect, random_cells, word_effects
from captioner.errors import DataError
from captioner.model.encoder import Grid
from captioner.model.state import StepDecoder
from captioner.vocabulary import Vocabulary
from captioner_training.data.captioned import Captioned
from captioner_training.data.captions import starts_of
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.content import FUNCTION_WORDS

_SHUT_GATE = 0.1  # below it a word depends on the sentence rather than on the grid
_BATCH = 25  # images; memory holds 19 copies of their grids per word
_MEASURES = ("effect", "deletion", "random_deletion", "insertion", "random_insertion")


class DeletionTest:
    """Runs the deletion test on every word of the captions of a split, batch by batch.

    Args:
        decoder: the decoder that made the captions.
        vocabulary: the vocabulary of the decoder.
        autocast: the precision of the decoder.
        insertion: see word_effects.
        images: number of images to test, from the first one on; None: all.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        *,
        vocabulary: Vocabulary,
        autocast: torch.autocast,
        insertion: bool = True,
        images: int | None = None,
    ) -> None:
        self._decoder, self._autocast, self._insertion = decoder, autocast, insertion
        self._vocabulary = vocabulary
        self._draws = random_cells(torch.Generator().manual_seed(0))
        self._images = images
        self._effects: list[WordEffect] = []
        self._captions: list[Sequence[str]] = []

    def add(self, grid: Grid, captioned: Sequence[Captioned]) -> None:
        """Run the deletion test on a batch of captions and add the results.

        Args:
            grid: the grids of the batch, in the order of `captioned`.
            captioned: the next captions of the split.

        Raises GenerationError: the decoder's scores are not finite.
        """
        if self._images is not None:
            captioned = captioned[: self._images - len(self._captions)]
        for at in range(0, len(captioned), _BATCH):
            batch = captioned[at : at + _BATCH]
            with self._autocast:
                effects = word_effects(
                    self._decoder,
                    grid.features[at : at + len(batch)],
                    [caption.hypothesis.tokens for caption in batch],
                    draws=self._draws,
                    starts=starts_of([caption.image for caption in batch], self._vocabulary),
                    insertion=self._insertion,
                )
            first = len(self._captions)
            self._effects += [effect._replace(caption=first + effect.caption) for effect in effects]
            self._captions += [caption.words for caption in batch]

    def result(self) -> dict[str, object]:
        """Return the means of each kind of word (see summarize_effects), and `all_content`.

        Raises DataError: the model has no attention.
        """
        if not self._effects:
            raise _no_attention()
        return {
            **summarize_effects(self._effects, self._captions),
            "all_content": summarize_content(self._effects, self._captions),
        }

    def content(self) -> dict[str, object] | None:
        """Return the means of all content words; see summarize_content."""
        return summarize_content(self._effects, self._captions)


class EffectMeans:
    """Averages word effects over a split, if the captioner itself measures them."""

    def __init__(self) -> None:
        self._words: list[tuple[int, str, float]] = []
        self._images = 0

    def add(self, words: Sequence[str], effects: Sequence[float] | None) -> None:
        """Add the words of the next caption with their effects in nats."""
        pairs = zip(words, effects or (), strict=effects is not None)
        self._words += [(self._images, word, effect) for word, effect in pairs]
        self._images += 1

    def result(self) -> dict[str, object]:
        """Return the mean `effect` of content words and of function words, with intervals.

        Raises DataError: no word has an effect.
        """
        if not self._words:
            raise _no_attention()
        kinds: dict[str, list[tuple[int, float]]] = {"content": [], "function": []}
        for image, word, effect in self._words:
            kinds["function" if word in FUNCTION_WORDS else "content"].append((image, effect))
        return {
            kind: _word_means(
                [image for image, _ in pairs],
                {"effect": [effect for _, effect in pairs]},
                images=self._images,
            )
            for kind, pairs in kinds.items()
            if pairs
        }


def _no_attention() -> DataError:
    return DataError("the deletion test needs a model with attention")


def summarize_effects(
    effects: Sequence[WordEffect], captions: Sequence[Sequence[str]]
) -> dict[str, object]:
    """Return the means over content words, content words with a shut gate, and function words.

    Returns:
        For each kind the number of `words`, and the means in nats with `intervals` over images:
        `deletion`, `random_deletion`, their difference `effect`, `insertion`, `random_insertion`.
    """
    kinds: dict[str, list[WordEffect]] = {"content": [], "content_shut_gate": [], "function": []}
    for effect in effects:
        shut = effect.gate is not None and effect.gate < _SHUT_GATE
        kind = "content_shut_gate" if shut else "content"
        kinds[kind if _is_content(effect, captions) else "function"].append(effect)
    return {kind: _means(words, images=len(captions)) for kind, words in kinds.items() if words}


def summarize_content(
    effects: Sequence[WordEffect], captions: Sequence[Sequence[str]]
) -> dict[str, object] | None:
    """Return the means over all content words, or None if there are none.

    Unlike the means of summarize_effects, these are comparable between decoders with and without a
    gate.
    """
    content = [effect for effect in effects if _is_content(effect, captions)]
    return _means(content, images=len(captions)) if content else None


def _is_content(effect: WordEffect, captions: Sequence[Sequence[str]]) -> bool:
    return captions[effect.caption][effect.place] not in FUNCTION_WORDS


def _means(effects: Sequence[WordEffect], *, images: int) -> dict[str, object]:
    columns = {name: [getattr(effect, name) for effect in effects] for name in _MEASURES}
    measured = {name: values for name, values in columns.items() if not math.isnan(sum(values))}
    return _word_means([effect.caption for effect in effects], measured, images=images)


def _word_means(
    image: Sequence[int], columns: Mapping[str, Sequence[float]], *, images: int
) -> dict[str, object]:
    """Return the mean of each column of word values; `image` has each word's image index."""
    counts = np.bincount(image, minlength=images)
    tables = {
        name: mean_table(np.bincount(image, weights=values, minlength=images), counts)
        for name, values in columns.items()
    }
    return {"words": len(image), **summary(tables)}
