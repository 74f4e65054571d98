"""Decoded batches: convert the decoder's hypotheses to captions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from math import exp
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from captioner.alternative import Alternative
from captioner.caption import Caption, ModelName
from captioner.generation.beam_search import OPTIONAL, Hypothesis
from captioner.trust.familiarity import pool
from captioner.trust.trust import Judgement, Trust
from captioner.vision.prepared import PreparedImage
from captioner.vocabulary import Vocabulary
from captioner.word import Word


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
        familiarities: Sequence[float | None] = [None] * len(images)
        if trust is None:
            judged = [
                [Judgement([None] * len(hypothesis.tokens), None) for hypothesis in beam]
                for beam in self.hypotheses
            ]
        else:
            judged, familiarities = trust.assess(pool(self.features), self.hypotheses)
        sentences = iter(self._sentences([*chain.from_iterable(judged)], vocabulary))
        captions = []
        for image, beam, familiarity in zip(images, self.hypotheses, familiarities, strict=True):
            best, *alternatives = islice(sentences, len(beam))
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

    def _sentences(
        self, judgements: Sequence[Judgement], vocabulary: Vocabulary
    ) -> list[Alternative]:
        """Return the sentences of all images, one after the other."""
        hypotheses = [*chain.from_iterable(self.hypotheses)]
        texts = [vocabulary.decode(hypothesis.tokens) for hypothesis in hypotheses]
        words = iter(self._words(hypotheses, texts, judgements))
        return [
            Alternative(
                text=vocabulary.join(sentence),
                score=hypothesis.score,
                words=tuple(islice(words, len(sentence))),
                trust=judgement.caption,
            )
            for hypothesis, sentence, judgement in zip(hypotheses, texts, judgements, strict=True)
        ]

    def _words(
        self,
        hypotheses: Sequence[Hypothesis],
        texts: Sequence[Sequence[str]],
        judgements: Sequence[Judgement],
    ) -> list[Word]:
        """Return the words of all sentences. Making them together is faster than one by one."""
        grid, unknown = (self.rows, self.columns), [None] * sum(map(len, texts))
        attention, gates, heads = (
            _join([getattr(hypothesis, name) for hypothesis in hypotheses]) for name in OPTIONAL
        )
        effects: list[Sequence[float | None]] = [
            values or [None] * len(sentence)
            for values, sentence in zip(chain.from_iterable(self.effects), texts, strict=True)
        ]
        columns = zip(
            chain.from_iterable(texts),
            # The last one of a sentence belongs to <end>.
            torch.cat([hypothesis.log_probabilities[:-1] for hypothesis in hypotheses]).tolist(),
            unknown if gates is None else gates.tolist(),
            unknown if attention is None else attention.reshape(-1, *grid),
            unknown if heads is None else heads.reshape(*heads.shape[:2], *grid),
            chain.from_iterable(effects),
            chain.from_iterable(judgement.words for judgement in judgements),
            chain.from_iterable(
                [at == judgement.subject for at in range(len(judgement.words))]
                for judgement in judgements
            ),
            strict=True,
        )
        return [
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


def _join(parts: Sequence[torch.Tensor | None]) -> NDArray[np.float32] | None:
    """Join the values of all sentences; None if the decoder does not have them."""
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors).float().numpy() if tensors else None
