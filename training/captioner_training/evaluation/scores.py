"""Scores of captions against references: BLEU, ROUGE-L and CIDEr-D on given tokens, and METEOR.

On the same tokens the numbers are pycocoevalcap's; they are counted image by image, for the
intervals, and faster. COCO's tokens and METEOR come from the Java programs in its wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from captioner.errors import CaptionerError
from captioner_training.evaluation.bleu import bleu_of_each, bleu_tables, tables_of_counts
from captioner_training.evaluation.bootstrap import (
    Estimate,
    Table,
    estimate,
    mean_table,
    with_intervals,
)
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.grounding import word_distance
from captioner_training.evaluation.java import meteor_table, tokenize_ptb
from captioner_training.evaluation.rouge import rouge_l, rouge_of_each
from captioner_training.losses.cider import CiderD

__all__ = ["fallback_scores", "human_scores", "official_scores", "score_split", "score_tables"]

Floats = NDArray[np.float64]
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

    def meteor() -> dict[str, Estimate]:
        texts = [[" ".join(words) for words in each] for each in wanted]
        return estimate({"METEOR": meteor_table(texts, [" ".join(words) for words in given])})

    return {
        "tokenizer": OFFICIAL_TOKENIZER,
        **_with_meteor(estimate(score_tables(wanted, given, corpus=whole)), meteor),
        "human": _with_meteor(human_scores(wanted, corpus=whole), lambda: _human_meteor(wanted)),
    }


def _with_meteor(
    scores: dict[str, Estimate], meteor: Callable[[], dict[str, Estimate]]
) -> dict[str, object]:
    try:
        return with_intervals(scores | meteor())
    except CaptionerError as error:
        return {**with_intervals(scores), "METEOR": {"error": error.record()}}


def _nested(references: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """Tokenize references in one go, and give each image its own back."""
    flat = iter(tokenize_ptb([text for texts in references for text in texts]))
    return [[next(flat) for _ in texts] for texts in references]


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
        **with_intervals(estimate(score_tables(references, captions, corpus=corpus))),
        "human": with_intervals(human_scores(references, corpus=corpus)),
    }


def human_scores(
    references: Sequence[Sequence[Words]], *, corpus: Sequence[Sequence[Words]] | None = None
) -> dict[str, Estimate]:
    """Score each reference of an image against the others: what people reach.

    An image with a single reference is left out. A person is compared with one reference fewer than
    the model, which costs people some BLEU. Everybody has a turn; an image with fewer references
    than another takes its turns again, so that all images weigh the same.
    """
    several = _several(references)
    if not several:
        return {}
    cider = CiderD(references if corpus is None else corpus)
    tables = tables_of_counts(_turns([np.array(bleu_of_each(each), float) for each in several]))
    each_alone = {
        "ROUGE-L": [np.array(rouge_of_each(each)) for each in several],
        "CIDEr": cider.score_each_other(several),
    }
    for name, values in each_alone.items():
        rows = _turns([np.stack([100 * one, np.ones_like(one)], axis=1) for one in values])
        tables[name] = Table(rows, _mean)
    return estimate(tables)


def _human_meteor(references: Sequence[Sequence[Words]]) -> dict[str, Estimate]:
    """METEOR 1.5 of people, in percent, from PTB tokens.

    Raises:
        MissingExtraError, DataError: see java.meteor_table.

    """
    several = _several(references)
    if not several:
        return {}
    said = [" ".join(words) for each in several for words in each]
    others = [
        [" ".join(words) for to, words in enumerate(each) if to != at]
        for each in several
        for at in range(len(each))
    ]
    table = meteor_table(others, said)
    ends = np.cumsum([len(each) for each in several])[:-1]
    return estimate({"METEOR": Table(_turns(np.split(table.rows, ends)), table.score)})


def _several(references: Sequence[Sequence[Words]]) -> list[Sequence[Words]]:
    return [each for each in references if len(each) > 1]


def _turns(rows: Sequence[Floats]) -> Floats:
    """Sum what was counted of each image's references (R, P) over the turns: (N, P)."""
    turns = np.arange(max(len(each) for each in rows))
    return np.stack([each[turns % len(each)].sum(axis=0) for each in rows])


def _mean(sums: Floats) -> Floats:
    found: Floats = sums[..., 0] / sums[..., 1]
    return found


def score_split(captioned: Sequence[Captioned]) -> dict[str, float]:
    """Score a split: BLEU, ROUGE-L, CIDEr-D, different and exact captions, how attention moves.

    On the model's own tokens. `attention_distance` is the total-variation distance between the
    words of a caption, averaged over the captions of two words or more.
    """
    references = [one.image.words for one in captioned]
    tables = score_tables(references, [one.words for one in captioned])
    scores = {name: table.value() for name, table in tables.items()}
    scores["different"] = float(len({tuple(one.words) for one in captioned}))
    exact = sum(tuple(one.words) in one.image.words for one in captioned)
    scores["exact"] = 100 * exact / len(captioned)
    distances = [
        word_distance(one.attention)
        for one in captioned
        if one.attention is not None and len(one.words) > 1
    ]
    scores["attention_distance"] = sum(distances) / max(1, len(distances))
    scores["words"] = sum(len(one.words) for one in captioned) / len(captioned)
    return scores
