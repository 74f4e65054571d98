"""Scores of captions against references: BLEU, ROUGE-L and CIDEr-D on given tokens, and METEOR.

On the same tokens the numbers are pycocoevalcap's; they are counted image by image, for the
intervals, and faster. COCO's tokens and METEOR come from the Java programs in its wheel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from captioner.errors import CaptionerError
from captioner_training.evaluation.bleu import bleu_tables
from captioner_training.evaluation.bootstrap import Estimate, Table, estimate, mean_table, told
from captioner_training.evaluation.java import meteor_table, tokenize_ptb
from captioner_training.evaluation.rouge import rouge_l
from captioner_training.objectives.cider import CiderD

__all__ = ["fallback_scores", "human_scores", "official_scores", "score_tables"]

Words = Sequence[str]

FALLBACK_TOKENIZER = "Treebank, lower case, without punctuation: close to COCO's, not the same"
OFFICIAL_TOKENIZER = "PTB, lower case, without punctuation: COCO's"


def score_tables(
    references: Sequence[Sequence[Words]],
    captions: Sequence[Words],
    *,
    corpus: Sequence[Sequence[Words]] | None = None,
) -> dict[str, Table]:
    """Count what BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D need, all in percent.

    Args:
        references: of each image, its tokenized references.
        captions: of each image, the words of its caption.
        corpus: the references that CIDEr's document frequencies come from; None: these.

    """
    pairs = zip(references, captions, strict=True)
    cider = CiderD(references if corpus is None else corpus)
    return {
        **bleu_tables(references, captions),
        "ROUGE-L": mean_table([rouge_l(*pair) for pair in pairs], scale=100),
        "CIDEr": mean_table(cider.score(references, [[one] for one in captions])[:, 0], scale=100),
    }


def official_scores(
    references: Sequence[Sequence[str]],
    captions: Sequence[str],
    *,
    corpus: Sequence[Sequence[str]] | None = None,
) -> dict[str, object]:
    """BLEU-1 to BLEU-4, ROUGE-L, CIDEr-D and METEOR 1.5 in percent, on PTB tokens.

    Args:
        references: of each image, its references as they were written.
        captions: of each image, its caption.
        corpus: the references that CIDEr's document frequencies come from; None: these.

    Returns:
        The scores, their `intervals`, and `human`, see human_scores. A METEOR that failed is an
        `error` in its place; the others stand.

    Raises:
        MissingExtraError, DataError: there is no pycocoevalcap, no Java, or the tokenizer failed.

    """
    wanted, given = _nested(references), tokenize_ptb(captions)
    whole = None if corpus is None else _nested(corpus)
    tables = score_tables(wanted, given, corpus=whole)
    scores: dict[str, Estimate] = estimate(tables)
    report: dict[str, object] = {"tokenizer": OFFICIAL_TOKENIZER}
    failed: dict[str, object] = {}
    try:
        meteor = meteor_table(
            [[" ".join(words) for words in each] for each in wanted],
            [" ".join(words) for words in given],
        )
        scores |= estimate({"METEOR": meteor})
    except CaptionerError as error:
        failed = {"METEOR": {"error": error.record()}}
    return {**report, **told(scores), **failed, "human": told(human_scores(wanted, corpus=whole))}


def _nested(references: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """Tokenize references in one go, and give each image its own back."""
    flat = iter(tokenize_ptb([text for texts in references for text in texts]))
    return [[next(flat) for _ in texts] for texts in references]


def human_scores(
    references: Sequence[Sequence[Words]], *, corpus: Sequence[Sequence[Words]] | None = None
) -> dict[str, Estimate]:
    """Score each reference against the others of its image: what people reach.

    An image with a single reference is left out. A person is compared with one reference fewer than
    the model, which costs people some BLEU.
    """
    several = [each for each in references if len(each) > 1]
    if not several:
        return {}
    rounds = max(len(each) for each in several)
    made: list[Mapping[str, Table]] = []
    for turn in range(rounds):
        # An image with fewer references than rounds takes its turns again.
        said = [each[turn % len(each)] for each in several]
        others = [
            [one for at, one in enumerate(each) if at != turn % len(each)] for each in several
        ]
        made.append(score_tables(others, said, corpus=references if corpus is None else corpus))
    tables = {
        name: Table(np.sum([one[name].rows for one in made], axis=0), table.score)
        for name, table in made[0].items()
    }
    return estimate(tables)


def fallback_scores(
    references: Sequence[Sequence[Words]],
    captions: Sequence[Words],
    *,
    corpus: Sequence[Sequence[Words]] | None = None,
) -> dict[str, object]:
    """The scores that need no Java, on tokens of our own; arguments as score_tables.

    Returns:
        The scores, their `intervals`, and `human`, see human_scores.

    """
    return {
        "tokenizer": FALLBACK_TOKENIZER,
        **told(estimate(score_tables(references, captions, corpus=corpus))),
        "human": told(human_scores(references, corpus=corpus)),
    }
