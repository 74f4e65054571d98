"""The images of a report, one by one."""

from __future__ import annotations

from collections.abc import Sequence

from captioner_training.evaluation.hallucination import named_categories
from captioner_training.evaluation.image_row import ImageRow
from captioner_training.evaluation.predictions import Target
from captioner_training.evaluation.scores import score_tables

__all__ = ["image_rows"]

Words = Sequence[str]


def image_rows(
    images: Sequence[Target],
    captions: Sequence[str],
    *,
    words: Sequence[Words],
    references: Sequence[Sequence[Words]],
    corpus: Sequence[Sequence[Words]] | None = None,
    scores: Sequence[float] | None = None,
    familiarity: Sequence[float] | None = None,
    surprise: Sequence[tuple[float, float]] | None = None,
) -> list[ImageRow]:
    """Score every image by itself, on tokens that need no Java.

    Args:
        images: of the split.
        captions: of each image, as it reads.
        words: of each caption.
        references: of each image, tokenized.
        corpus: see score_tables.
        scores: of each caption, its mean log-probability.
        familiarity: of each image.
        surprise: of each image, the nats and the tokens of its references.

    """
    tables = score_tables(references, words, corpus=corpus)
    rows = []
    for at, (one, caption) in enumerate(zip(images, captions, strict=True)):
        there = {name for text in references[at] for name in named_categories(text)}
        said = dict.fromkeys(named_categories(words[at]))
        nats, tokens = (None, None) if surprise is None else surprise[at]
        rows.append(
            ImageRow(
                id=one.id,
                name=one.name,
                caption=caption,
                references=one.references,
                cider=100 * float(tables["CIDEr"].rows[at, 0]),
                rouge_l=100 * float(tables["ROUGE-L"].rows[at, 0]),
                score=None if scores is None else float(scores[at]),
                familiarity=None if familiarity is None else float(familiarity[at]),
                invented=tuple(name for name in said if name not in there),
                cross_entropy=None if nats is None or tokens is None else nats / tokens,
                reference_tokens=None if tokens is None else int(tokens),
            )
        )
    return rows
