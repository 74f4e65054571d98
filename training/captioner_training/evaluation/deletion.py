"""The deletion test over a whole split."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from captioner.decoders.state import StepDecoder
from captioner.deletion import WordEffect, random_cells, word_effects
from captioner.errors import DataError
from captioner.vision.encoder import Grid
from captioner.vocabulary import Vocabulary
from captioner_training.data.captioned import Captioned
from captioner_training.data.captions import starts_of
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.content import FUNCTION_WORDS

__all__ = ["DeletionTest", "summarize_content", "summarize_effects"]

_SHUT_GATE = 0.1  # a gate below it has closed the view: the word comes from the sentence so far
_BATCH = 25  # images: each word of a batch is tested 19 times, on copies of their grids


class DeletionTest:
    """Tests every word of the captions of a split, batch by batch.

    Args:
        decoder: of the captions.
        vocabulary: of theirs.
        autocast: how it computes.
        insertion: see word_effects.
        images: how many are tested, from the first; None: all.
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
        """Test the next captions of the split, on their grids.

        Raises GenerationError: the decoder's scores are not numbers.
        """
        if self._images is not None:
            captioned = captioned[: self._images - len(self._captions)]
        for at in range(0, len(captioned), _BATCH):
            some = captioned[at : at + _BATCH]
            with self._autocast:
                effects = word_effects(
                    self._decoder,
                    grid.features[at : at + len(some)],
                    [one.hypothesis.tokens for one in some],
                    draws=self._draws,
                    starts=starts_of([one.image for one in some], self._vocabulary),
                    insertion=self._insertion,
                )
            first = len(self._captions)
            self._effects += [one._replace(caption=first + one.caption) for one in effects]
            self._captions += [one.words for one in some]

    def result(self) -> dict[str, object]:
        """Summarise the captions that were tested; see summarize_effects.

        Raises DataError: the model captions without attention.
        """
        if not self._effects:
            raise DataError("the model captions without attention: there is nothing to delete")
        return {
            **summarize_effects(self._effects, self._captions),
            "all_content": summarize_content(self._effects, self._captions),
        }

    def content(self) -> dict[str, object] | None:
        """Summarise all content words together; see summarize_content."""
        return summarize_content(self._effects, self._captions)


def summarize_effects(
    effects: Sequence[WordEffect], captions: Sequence[Sequence[str]]
) -> dict[str, object]:
    """Average over content words, function words, and content words whose gate is shut.

    Returns:
        For each kind: `words`, how many; means over them in nats, with `intervals` over images:
        `deletion`, `random_deletion`, their difference `effect`, `insertion`, `random_insertion`.
    """
    kinds: dict[str, list[WordEffect]] = {"content": [], "content_shut_gate": [], "function": []}
    for one in effects:
        shut = one.gate is not None and one.gate < _SHUT_GATE
        kind = "content_shut_gate" if shut else "content"
        kinds[kind if _is_content(one, captions) else "function"].append(one)
    return {kind: _means(some, images=len(captions)) for kind, some in kinds.items() if some}


def summarize_content(
    effects: Sequence[WordEffect], captions: Sequence[Sequence[str]]
) -> dict[str, object] | None:
    """Average over content words whether their gate is open or shut, as summarize_effects does.

    Decoders with a gate and decoders without can be compared by these alone. None: no such word.
    """
    content = [one for one in effects if _is_content(one, captions)]
    return _means(content, images=len(captions)) if content else None


def _is_content(effect: WordEffect, captions: Sequence[Sequence[str]]) -> bool:
    return captions[effect.caption][effect.place] not in FUNCTION_WORDS


def _means(effects: Sequence[WordEffect], *, images: int) -> dict[str, object]:
    at = np.array([one.caption for one in effects])
    counts = np.bincount(at, minlength=images)
    tables = {}
    for name in ("effect", "deletion", "random_deletion", "insertion", "random_insertion"):
        values = [getattr(one, name) for one in effects]
        if not any(value is None or math.isnan(value) for value in values):
            tables[name] = mean_table(np.bincount(at, weights=values, minlength=images), counts)
    return {"words": len(effects), **summary(tables)}
