"""Scores of captions against references: BLEU, ROUGE-L and CIDEr-D on given tokens, and METEOR.

On the same tokens the numbers are those of pycocoevalcap's scorers, and BLEU's are nltk's too. They
are counted here image by image, because the intervals draw the images again, and because all but
METEOR is there without Java and without the extra `eval`. COCO's tokens come from java.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any

import numpy as np

from captioner.errors import CaptionerError
from captioner.trust.consensus import n_grams
from captioner.vocabulary import Tokenizer
from captioner_training.data.captioned import Captioned
from captioner_training.evaluation.bootstrap import Floats, Table, mean_table, summary
from captioner_training.evaluation.grounding import word_distance
from captioner_training.evaluation.java import meteor_table, tokenize_ptb
from captioner_training.losses.cider import CiderD

__all__ = [
    "Tables",
    "bleu_tables",
    "common_words",
    "human_tables",
    "model_facts",
    "official_scores",
    "score_split",
    "score_tables",
    "token_name",
]

Words = Sequence[str]
References = Sequence[Sequence[Words]]
"""Of each image, its tokenized references."""

Tables = dict[str, Table]

_TOKENS = {
    "words": "Treebank, {}, without punctuation: close to COCO's, not the same",
    "unicode": "words by Unicode's rules, {}, without punctuation",
    "characters": "characters, {}, without punctuation",
}
OFFICIAL_TOKENIZER = "PTB, lower case, without punctuation: COCO's"

_ORDERS = (1, 2, 3, 4)
# pycocoevalcap's: an order without a match counts as next to nothing instead of as log 0.
_TINY, _SMALL = 1e-15, 1e-9
_BETA = 1.2  # COCO's ROUGE-L: recall counts a little more than precision


def token_name(tokenizer: Tokenizer, *, lowercase: bool = True) -> str:
    """Say in a report what was scored."""
    return _TOKENS[tokenizer].format("lower case" if lowercase else "with capitals")


def score_tables(
    references: References, captions: Sequence[Words], *, corpus: References | None = None
) -> Tables:
    """Count what BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D need, all in percent.

    Args:
        references: of each image.
        captions: of each image, the words of its caption.
        corpus: the references that CIDEr's document frequencies come from; None: these.
    """
    pairs = zip(references, captions, strict=True)
    cider = CiderD(references if corpus is None else corpus)
    return {
        **bleu_tables(references, captions),
        "ROUGE-L": mean_table([_rouge_l(*pair) for pair in pairs], scale=100),
        "CIDEr": mean_table(cider.score(references, [[one] for one in captions])[:, 0], scale=100),
    }


def bleu_tables(references: References, captions: Sequence[Words]) -> Tables:
    """Count what BLEU-1 to BLEU-4 need (Papineni et al. 2002)."""
    pairs = zip(references, captions, strict=True)
    rows = np.array([_bleu_counts(*pair) for pair in pairs], dtype=np.float64)
    return {f"BLEU-{order}": Table(rows, partial(_bleu, order=order)) for order in _ORDERS}


def _bleu_counts(references: Sequence[Words], caption: Words) -> list[int]:
    """Count clipped matches and n-grams said, by order; words, and those of the nearest reference.

    Nearest in length; the shorter one of two.
    """
    matches, count = [], []
    for order in _ORDERS:
        said, *others = (Counter(n_grams(words, order)) for words in (caption, *references))
        matches.append((said & reduce(or_, others)).total())
        count.append(said.total())
    nearest = min((abs(len(one) - len(caption)), len(one)) for one in references)[1]
    return [*matches, *count, len(caption), nearest]


def _bleu(sums: Floats, *, order: int) -> Floats:
    """Work out corpus BLEU in percent from sums (..., 10) of `_bleu_counts` over images."""
    precision = (sums[..., :order] + _TINY) / (sums[..., 4 : 4 + order] + _SMALL)
    ratio = (sums[..., 8] + _TINY) / (sums[..., 9] + _SMALL)
    brevity = np.exp(np.minimum(0, 1 - 1 / ratio))
    found: Floats = 100 * brevity * np.exp(np.log(precision).mean(axis=-1))
    return found


def _rouge_l(references: Sequence[Words], caption: Words) -> float:
    """Score one caption (Lin 2004), 0 to 1: by the best precision and the best recall."""
    common = [common_words(one, caption) for one in references]
    precision = max(common) / max(1, len(caption))
    recall = max(n / max(1, len(one)) for n, one in zip(common, references, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def common_words(one: Words, other: Words) -> int:
    """Count the words of the longest common subsequence.

    By bits (Hyyrö 2004): a word of `other` costs a few operations on one long integer.
    """
    places: dict[str, int] = defaultdict(int)
    for place, word in enumerate(one):
        places[word] |= 1 << place
    row = (1 << len(one)) - 1
    for word in other:
        shared = row & places.get(word, 0)
        row = (row + shared) | (row - shared)
    return len(one) - (row & ((1 << len(one)) - 1)).bit_count()


def human_tables(
    references: References, score: Callable[[References, Sequence[Words]], Tables]
) -> Tables:
    """Score each reference of an image against the others: what people reach.

    An image with a single reference is left out. A person is compared with one reference fewer than
    the model, which costs people some BLEU. Everybody has a turn; an image with fewer references
    than another takes its turns again, so that all images weigh the same.
    """
    several = [each for each in references if len(each) > 1]
    if not several:
        return {}
    places = [(each, at) for each in several for at in range(len(each))]
    others = [[*each[:at], *each[at + 1 :]] for each, at in places]
    tables = score(others, [each[at] for each, at in places])
    ends = np.cumsum([len(each) for each in several])[:-1]
    turns = np.arange(max(len(each) for each in several))

    def in_turns(rows: Floats) -> Floats:
        each = np.split(rows, ends)  # (R, P) of the R references of each image
        return np.stack([one[turns % len(one)].sum(axis=0) for one in each])

    return {name: Table(in_turns(table.rows), table.score) for name, table in tables.items()}


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
        The scores, their `intervals`, and `human`, see human_tables. A METEOR that failed is an
        `error` in its place; the others stand.

    Raises:
        MissingExtraError, DataError: there is no pycocoevalcap, no Java, or the tokenizer failed.
    """
    texts, words = _nested(references), tokenize_ptb(captions)
    score = partial(score_tables, corpus=texts if corpus is None else _nested(corpus))
    human = human_tables(texts, score)

    def meteor(*pair: Any) -> Tables:
        return {"METEOR": meteor_table(*pair)}

    return {
        "tokenizer": OFFICIAL_TOKENIZER,
        **_with_meteor(score(texts, words), lambda: meteor(texts, words)),
        "human": _with_meteor(human, lambda: human_tables(texts, meteor)),
    }


def _nested(references: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """Tokenize references in one go, and give each image its own back."""
    flat = iter(tokenize_ptb([text for texts in references for text in texts]))
    return [[next(flat) for _ in texts] for texts in references]


def _with_meteor(tables: Tables, meteor: Callable[[], Tables]) -> dict[str, object]:
    try:
        return summary(tables | meteor())
    except CaptionerError as error:
        return {**summary(tables), "METEOR": {"error": error.record()}}


def score_split(captioned: Sequence[Captioned]) -> dict[str, float]:
    """Score a split on the model's own tokens; and see model_facts."""
    tables = score_tables([one.image.words for one in captioned], [one.words for one in captioned])
    return {name: table.value() for name, table in tables.items()} | model_facts(captioned)


def model_facts(captioned: Sequence[Captioned]) -> dict[str, float]:
    """Say how many captions are different, and how much attention moves.

    Returns:
        `different`, how many; `exact`, how many are a reference word for word, in percent; `words`,
        the mean length; `attention_distance`, the total-variation distance between the words of a
        caption, averaged over the captions of two words or more.
    """
    words = [tuple(one.words) for one in captioned]
    exact = sum(tuple(one.words) in one.image.words for one in captioned)
    distances = [
        word_distance(one.attention)
        for one in captioned
        if one.attention is not None and len(one.words) > 1
    ]
    return {
        "different": float(len(set(words))),
        "exact": 100 * exact / len(words),
        "attention_distance": sum(distances) / max(1, len(distances)),
        "words": sum(map(len, words)) / len(words),
    }
