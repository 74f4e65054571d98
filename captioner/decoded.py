"""Decoded batches: convert the decoder's hypotheses to captions."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from captioner.alternative import Alternative
from captioner.caption import Caption, ModelName
from captioner.generation.hypothesis import Hypothesis
from captioner.trust.familiarity import pool
from captioner.trust.trust import Judgement, Trust
from captioner.vision.prepared import PreparedImage
from captioner.vocabulary import Vocabulary
from captioner.word import Word

__all__ = ["DecodedBatch"]


class DecodedBatch(NamedTuple):
    """The sentences of B images.

    hypotheses: the hypotheses of each image, best first.
    effects: for each hypothesis, the effects of its words, or None; see captioner.deletion.
    features: (B, L, D), the grids, L = rows * columns.
    """

    hypotheses: Sequence[Sequence[Hypothesis]]
    effects: Sequence[Sequence[list[float] | None]]
    features: torch.Tensor
    rows: int
    columns: int

    def captions(
        self,
        images: Sequence[PreparedImage],
        *,
        vocabulary: Vocabulary,
        trust: Trust | None,
        model: ModelName,
        style: str | None,
    ) -> list[Caption]:
        """Make the captions of the B images; `trust` is None if the checkpoint has none."""
        beams = self.hypotheses
        judged: Sequence[Sequence[Judgement | None]] = [[None] * len(beam) for beam in beams]
        familiarities: Sequence[float | None] = [None] * len(images)
        if trust is not None:
            judged, familiarities = trust.assess(pool(self.features), beams)
        captions = []
        rows = zip(images, beams, self.effects, judged, familiarities, strict=True)
        for image, beam, effects, judgements, familiarity in rows:
            best, *alternatives = (
                self._sentence(*sentence, vocabulary=vocabulary)
                for sentence in zip(beam, effects, judgements, strict=True)
            )
            captions.append(
                Caption(
                    text=best.text,
                    score=best.score,
                    words=best.words,
                    alternatives=tuple(alternatives),
                    image=image.image,
                    model=model,
                    box=image.box,
                    size=image.size,
                    trust=best.trust,
                    familiarity=familiarity,
                    style=style,
                )
            )
        return captions

    def _sentence(
        self,
        hypothesis: Hypothesis,
        effects: Sequence[float] | None,
        judgement: Judgement | None,
        *,
        vocabulary: Vocabulary,
    ) -> Alternative:
        texts = vocabulary.decode(hypothesis.tokens)
        subject = None if judgement is None else judgement.subject
        gates, attention, heads = map(
            _copy, (hypothesis.gate, hypothesis.attention, hypothesis.heads)
        )
        grid, unknown = (self.rows, self.columns), [None] * len(texts)
        columns = zip(
            texts,
            hypothesis.log_probabilities[:-1].tolist(),  # the last one belongs to <end>
            unknown if gates is None else gates.tolist(),
            unknown if attention is None else attention.reshape(-1, *grid),
            unknown if heads is None else heads.reshape(*heads.shape[:2], *grid),
            effects or unknown,
            unknown if judgement is None else judgement.words,
            [at == subject for at in range(len(texts))],
            strict=True,
        )
        words = [
            Word(
                text=text,
                probability=exp(log),
                gate=gate,
                attention=weights,
                heads=head_weights,
                effect=effect,
                trust=trust,
                subject=is_subject,
            )
            for text, log, gate, weights, head_weights, effect, trust, is_subject in columns
        ]
        return Alternative(
            text=vocabulary.join(texts),
            score=hypothesis.score,
            words=tuple(words),
            trust=None if judgement is None else judgement.caption,
        )


def _copy(part: torch.Tensor | None) -> NDArray[np.float32] | None:
    """Copy a tensor, which may be a view of the whole batch."""
    return None if part is None else part.numpy().astype(np.float32)
