"""Score captions against references: BLEU, ROUGE-L and CIDEr-D on given tokens, and METEOR.

On the same tokens the scores equal those of pycocoevalcap. Counts are kept for each image, for the
bootstrap. Only METEOR and COCO's tokens need Java and the extra `eval`; see java.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import or_

import numpy as np

from captioner.errors import CaptionerError
from captioner.trust.consensus import n_grams
from captioner.vocabulary import Tokenizer
from captioner_training.data.images import Captioned
from captioner_training.evaluation.bootstrap import Floats, Table, mean_table, summary
from captioner_training.evaluation.java import meteor, meteor_rows, tokenize_ptb
from captioner_training.losses.cider import CiderD

Words = Sequence[str]
References = Sequence[Sequence[Words]]
"""The tokenized references of each image."""

Tables = dict[str, Table]

_TOKENS = {
    "words": "Treebank, {}, without punctuation (similar to COCO's, not equal)",
    "unicode": "Unicode words, {}, without punctuation",
    "characters": "characters, {}, without punctuation",
}
_OFFICIAL_TOKENS = "PTB, lower case, without punctuation (COCO's)"

_ORDERS = (1, 2, 3, 4)
_TINY, _SMALL = 1e-15, 1e-9  # as in pycocoevalcap, to avoid log 0
_BETA = 1.2  # as in COCO's ROUGE-L; above 1, recall has more weight than precision


def token_name(tokenizer: Tokenizer, *, lowercase: bool = True) -> str:
    """Describe the tokens of a score for a report."""
    return _TOKENS[tokenizer].format("lower case" if lowercase else "with capitals")


def score_tables(
    references: References, captions: Sequence[Words], *, corpus: References | None = None
) -> Tables:
    """Return the tables of BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D, in percent.

    `corpus` has the references for CIDEr's document frequencies; None: `references`.
    """
    pairs = zip(references, captions, strict=True)
    cider = CiderD(references if corpus is None else corpus)
    return {
        **bleu_tables(references, captions),
        "ROUGE-L": mean_table([_rouge_l(*pair) for pair in pairs], scale=100),
        "CIDEr": mean_table(
            cider.score(references, [[caption] for caption in captions])[:, 0], scale=100
        ),
    }


def bleu_tables(references: References, captions: Sequence[Words]) -> Tables:
    """Return the tables of BLEU-1 to BLEU-4 (Papineni et al. 2002)."""
    pairs = zip(references, captions, strict=True)
    rows = np.array([_bleu_counts(*pair) for pair in pairs], dtype=np.float64)
    return {f"BLEU-{order}": Table(rows, partial(_bleu, order=order)) for order in _ORDERS}


def _bleu_counts(references: Sequence[Words], caption: Words) -> list[int]:
    """Count clipped matches and n-grams by order, and the words of caption and reference.

    The counted reference is the one nearest in length; of two that are equally near, the shorter.
    """
    matches, count = [], []
    for order in _ORDERS:
        grams, *allowed = (Counter(n_grams(words, order)) for words in (caption, *references))
        matches.append((grams & reduce(or_, allowed)).total())
        count.append(grams.total())
    lengths = map(len, references)
    nearest = min((abs(length - len(caption)), length) for length in lengths)[1]
    return [*matches, *count, len(caption), nearest]


def _bleu(sums: Floats, *, order: int) -> Floats:
    """Return corpus BLEU in percent from sums (..., 10) of `_bleu_counts` over images."""
    precision = (sums[..., :order] + _TINY) / (sums[..., 4 : 4 + order] + _SMALL)
    ratio = (sums[..., 8] + _TINY) / (sums[..., 9] + _SMALL)
    brevity = np.exp(np.minimum(0, 1 - 1 / ratio))
    score: Floats = 100 * brevity * np.exp(np.log(precision).mean(axis=-1))
    return score


def _rouge_l(references: Sequence[Words], caption: Words) -> float:
    """Return ROUGE-L (Lin 2004), 0 to 1, from the best precision and the best recall."""
    common = [common_words(reference, caption) for reference in references]
    precision = max(common) / max(1, len(caption))
    lengths = (max(1, len(reference)) for reference in references)
    recall = max(n / length for n, length in zip(common, lengths, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def common_words(reference: Words, caption: Words) -> int:
    """Return the length of the longest common subsequence (bit-parallel, Hyyrö 2004)."""
    places: dict[str, int] = defaultdict(int)
    for place, word in enumerate(reference):
        places[word] |= 1 << place
    row = (1 << len(reference)) - 1
    for word in caption:
        shared = row & places.get(word, 0)
        row = (row + shared) | (row - shared)
    return len(reference) - (row & ((1 << len(reference)) - 1)).bit_count()


def human_tables(
    references: References, score: Callable[[References, Sequence[Words]], Tables]
) -> Tables:
    """Score human captions: each reference of an image against the image's other references.

    Images with a single reference are skipped. Human captions have one reference fewer than the
    model's captions, which lowers their BLEU slightly. All images have the same weight: if an image
    has fewer references than others, its references are counted more often.
    """
    others, captions, counts = _leave_one_out(references)
    return _by_image(score(others, captions), counts) if counts else {}


def _leave_one_out(references: References) -> tuple[References, Sequence[Words], Sequence[int]]:
    """Return each reference with the others of its image, and the references of each image."""
    images = [captions for captions in references if len(captions) > 1]
    places = [(captions, at) for captions in images for at in range(len(captions))]
    others = [[*captions[:at], *captions[at + 1 :]] for captions, at in places]
    return others, [captions[at] for captions, at in places], [*map(len, images)]


def _by_image(tables: Tables, counts: Sequence[int]) -> Tables:
    """Sum the rows of human captions to rows of images that have the same weight."""
    turns = np.arange(max(counts))

    def image_sums(rows: Floats) -> Floats:
        blocks = np.split(rows, np.cumsum(counts)[:-1])  # (R, P) for R references of an image
        return np.stack([block[turns % len(block)].sum(axis=0) for block in blocks])

    return {name: Table(image_sums(table.rows), table.score) for name, table in tables.items()}


def official_scores(
    references: Sequence[Sequence[str]],
    captions: Sequence[str],
    *,
    corpus: Sequence[Sequence[str]] | None = None,
) -> dict[str, object]:
    """Return BLEU-1 to BLEU-4, ROUGE-L, CIDEr-D and METEOR 1.5 in percent, on PTB tokens.

    References and captions are texts as written. `corpus` is as for score_tables. The result has
    the scores, their `intervals`, and under `human` the scores of human_tables. If METEOR fails, it
    has an `error` in place of its score.
    """
    texts, words = _nested(references), tokenize_ptb(captions)
    score = partial(score_tables, corpus=texts if corpus is None else _nested(corpus))
    scores, human = score(texts, words), human_tables(texts, score)
    others, said, counts = _leave_one_out(texts)
    failed: dict[str, object] = {}
    try:
        rows = meteor_rows([*texts, *others], [*words, *said])  # in one call: Java starts slowly
        scores["METEOR"] = Table(rows[: len(words)], meteor)
        if counts:
            human |= _by_image({"METEOR": Table(rows[len(words) :], meteor)}, counts)
    except CaptionerError as error:
        failed = {"METEOR": {"error": error.record()}}
    tokens = {"tokenizer": _OFFICIAL_TOKENS}
    return {**tokens, **summary(scores), **failed, "human": summary(human)}


def _nested(references: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """Tokenize the references of all images in one call."""
    flat = iter(tokenize_ptb([text for texts in references for text in texts]))
    return [[next(flat) for _ in texts] for texts in references]


def score_split(captioned: Sequence[Captioned]) -> dict[str, float]:
    """Score a split on the model's tokens, without intervals, and add model_facts."""
    references = [caption.image.words for caption in captioned]
    tables = score_tables(references, [caption.words for caption in captioned])
    return {name: table.value() for name, table in tables.items()} | model_facts(captioned)


def model_facts(captioned: Sequence[Captioned]) -> dict[str, float]:
    """Return the number of `different` captions, their mean number of `words`, and `exact`.

    `exact` is the percentage of captions that equal a reference.
    """
    words = [tuple(caption.words) for caption in captioned]
    exact = sum(tuple(caption.words) in caption.image.words for caption in captioned)
    return {
        "different": float(len(set(words))),
        "exact": 100 * exact / len(words),
        "words": sum(map(len, words)) / len(words),
    }
