"""Fit and measure the trust in words and captions; see captioner.trust.

Word features are fitted on the training photos: ridge regression from the mean features of a
photo's grid to the share of its references with each kind of word. Two logistic regressions, for
words and for captions, are fitted on captions of held-out photos.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from captioner.errors import DataError
from captioner.trust.consensus import Consensus
from captioner.trust.familiarity import Familiarity
from captioner.trust.trust import (
    DOUBTFUL,
    DOUBTFUL_SUBJECT,
    Judgement,
    Trust,
    WordFeatures,
    word_clues,
)
from captioner.vocabulary import Vocabulary
from captioner_training.data.captioned import Captioned
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.bootstrap import Floats, mean_table, ranking_table, summary
from captioner_training.evaluation.calibration import reliability
from captioner_training.evaluation.content import (
    count_nouns,
    is_claim,
    right_words,
    stem,
    stems_of,
    synonyms,
)
from captioner_training.evaluation.hallucination import mentions, named_categories
from captioner_training.evaluation.ridge import Ridge, fewest_photos

FEWEST_PHOTOS = 100
"""Least number of training photos, and of held-out photos, for fitting."""

_RIDGE = 0.08  # strength of the regularisation per photo
_CONSTANT = 1e-3  # strength of the regularisation of a logistic regression's constant
_FEWEST_WORDS = 100
_SHARES = tuple(share / 20 for share in range(1, 21))


def fit_word_features(
    pooled: NDArray[np.float32], images: Sequence[CaptionedImage], vocabulary: Vocabulary
) -> WordFeatures:
    """Fit, for each kind of word, the probability that a reference of a photo contains it.

    Words with the same stem are one kind. A synonym in a reference counts too.

    Args:
        pooled: (N, D + 1), pooled grids of training photos; see captioner.trust.familiarity.pool.
        images: the same photos with their references.
        vocabulary: the vocabulary of the model.

    Raises DataError: the photos are too similar.
    """
    vocabulary_words = _words(vocabulary)
    stems = [stem(word) if is_claim(word) else None for word in vocabulary_words]
    nouns = count_nouns(words for image in images for words in image.words)
    columns = {kind: at for at, kind in enumerate(dict.fromkeys(filter(None, stems)))}
    shares = _reference_shares(images, columns)
    references = [len(image.words) for image in images]
    common = (shares > 0).sum(axis=0) >= fewest_photos(len(images))
    ridge = Ridge.fit(pooled, shares[:, common], references, strength=_RIDGE)
    # Rare kinds share the last column, which does not depend on the photo.
    column = np.where(common, common.cumsum() - 1, common.sum())
    rare = 0.0
    if not common.all():
        rare = np.average(shares[:, ~common], axis=0, weights=references).mean()
    if not (np.abs(ridge.slopes) <= np.finfo(np.float16).max).all():  # also refuses NaN
        raise DataError("trust cannot be fitted: the training photos are too similar: add others")
    return WordFeatures(
        kinds=np.array([-1 if kind is None else int(column[columns[kind]]) for kind in stems]),
        feature_mean=ridge.middle.astype(np.float32),
        coefficients=np.pad(ridge.slopes, ((0, 0), (0, 1))).astype(np.float16),
        shares=np.append(ridge.usual, rare).astype(np.float32),
        nouns=np.array([word in nouns for word in vocabulary_words], np.int8),
    )


def _reference_shares(
    images: Sequence[CaptionedImage], columns: Mapping[str, int]
) -> NDArray[np.float32]:
    """Return (N, C): the share of a photo's references that contain a stem or a synonym of it."""
    columns_of: dict[str, set[int]] = defaultdict(set)  # columns of each stem in a reference
    for kind, at in columns.items():
        for synonym in synonyms(kind):
            columns_of[synonym].add(at)
    shares = np.zeros((len(images), len(columns)), np.float32)
    for row, image in zip(shares, images, strict=True):
        for words in image.words:
            row[list({at for kind in stems_of([words]) for at in columns_of.get(kind, ())})] += 1
        row /= len(image.words)
    return shares


def _words(vocabulary: Vocabulary) -> list[str]:
    """Return the word of each token. Special tokens count as function words."""
    words = ["".join(vocabulary.decode_plain([token])) for token in range(len(vocabulary))]
    return [word or "the" for word in words]


def fit_trust(
    captioned: Sequence[Captioned],
    pooled: NDArray[np.float32],
    *,
    word_features: WordFeatures,
    familiarity: Familiarity,
    weights: str,
    consensus: Consensus | None,
    words: tuple[str, ...] = (),
) -> Trust:
    """Fit the trust in words and captions.

    Args:
        captioned: held-out photos with the captions of the model.
        pooled: (N, D + 1), their pooled grids.
        word_features: from fit_word_features.
        familiarity: statistics of the training photos.
        weights: hash of the model's weights; see captioner.trust.digest_weights.
        consensus: the consensus that chose the captions.
        words: see Trust.

    Raises DataError: the captions have too few content words.
    """
    beams = [[caption.hypothesis] for caption in captioned]
    pairs = zip(word_features(pooled), captioned, strict=True)
    words_of = [word_clues(word_features, shares, caption.hypothesis) for shares, caption in pairs]
    clues, kinds = (np.concatenate(parts) for parts in zip(*words_of, strict=True))
    right = [
        is_right
        for caption in captioned
        for is_right in right_words(caption.words, caption.image.words)
        if is_right is not None
    ]
    if len(right) < _FEWEST_WORDS:
        raise DataError(
            f"trust cannot be fitted: the captions of the validation photos have {len(right)} "
            f"content words; at least {_FEWEST_WORDS} are needed"
        )
    word = fit_logistic(clues[kinds >= 0], right).astype(np.float32)
    trust = Trust(
        familiarity=familiarity,
        word_features=word_features,
        word=word,
        caption=np.array([0.0, 1.0], np.float32),
        weights=weights,
        consensus=consensus,
        words=words,
    )
    sums, flawless = [], []
    judgements = trust.judge(pooled, beams)
    for caption, (judgement,) in zip(captioned, judgements, strict=True):
        if judgement.caption is not None:
            sums.append([np.log([value for value in judgement.words if value is not None]).sum()])
            flawless.append(False not in right_words(caption.words, caption.image.words))
    return replace(trust, caption=fit_logistic(np.array(sums), flawless).astype(np.float32))


def fit_logistic(clues: Floats, right: Sequence[bool]) -> Floats:
    """Fit a logistic regression by Newton's method.

    An L2 penalty on the slopes of standardised clues keeps them finite. The constant has almost
    none, so that the mean prediction is the share of right outcomes; it is finite if all are right.

    Args:
        clues: (N, P), the inputs.
        right: (N,), the outcomes.

    Returns:
        (1 + P,), the constant and the slopes.
    """
    middle, width = clues.mean(axis=0), clues.std(axis=0) + 1e-9
    columns = np.concatenate([np.ones((len(clues), 1)), (clues - middle) / width], axis=1)
    target, weights = np.asarray(right, np.float64), np.zeros(columns.shape[1])
    penalty = np.array([_CONSTANT, *np.ones(len(weights) - 1)])
    for _ in range(30):
        predicted = (1 + np.tanh(columns @ weights / 2)) / 2
        gradient = columns.T @ (predicted - target) + penalty * weights
        hessian = (columns.T * (predicted * (1 - predicted))) @ columns + np.diag(penalty)
        weights = weights - np.linalg.solve(hessian, gradient)
    slopes = weights[1:] / width
    return np.concatenate([[weights[0] - middle @ slopes], slopes])


class _Predictions(NamedTuple):
    """N words or captions: trust, another score, whether each is right, and its image's index."""

    trust: Floats
    score: Floats
    right: Floats
    image: Floats

    @classmethod
    def of(cls, rows: Sequence[tuple[float, float, bool, int]]) -> _Predictions:
        return cls(*np.array(rows, np.float64).reshape(-1, 4).T)

    def measure(self, images: int, plain: str) -> dict[str, object]:
        """Return the quality of trust, and the AUROC of the other score, named `plain`."""
        image = self.image.astype(int)
        count = np.bincount(image, minlength=images)
        right = np.bincount(image, self.right, minlength=images)
        error, bins = reliability(self.trust, self.right)
        tables = {
            "right": mean_table(right, count, scale=100),
            "auroc": ranking_table(self.trust, self.right, image, images=images),
            f"auroc_{plain}": ranking_table(self.score, self.right, image, images=images),
        }
        return {"count": len(image), "error": error, **summary(tables), "bins": bins}


def measure_trust(captioned: Sequence[Captioned], judged: Sequence[Judgement]) -> dict[str, object]:
    """Measure how well trust predicts whether words and captions are right.

    Args:
        captioned: a captioned split.
        judged: the trust in its captions.

    Returns:
        `words`, `captions`, `objects`: for each, the count, the percentage that is right, the AUROC
            of trust and of the probability or score, and the calibration error. A caption is right
            if all its words are. An object (COCO category) is right if a reference names it.
        `marks`: see measure_marks.
        `people`: the percentage of words in references that are right, where each reference is
            judged by the image's other references.
        `review`: see review_curve.
    """
    words, captions, objects = [], [], []
    expected, wrong = [], []
    people = np.zeros((len(captioned), 2))
    for at, (caption, judgement) in enumerate(zip(captioned, judged, strict=True)):
        references, trusts = caption.image.words, judgement.words
        right = right_words(caption.words, references)
        probabilities = caption.hypothesis.log_probabilities.exp().tolist()
        for trust, probability, is_right in zip(trusts, probabilities, right, strict=False):
            if trust is not None and is_right is not None:
                words.append((trust, probability, is_right, at))
        if judgement.caption is not None:
            all_right = False not in right
            captions.append((judgement.caption, caption.hypothesis.score, all_right, at))
            expected.append(sum(1 - trust for trust in trusts if trust is not None))
            wrong.append(right.count(False))
        named = {name for words in references for name in named_categories(words)}
        for mention in mentions(caption.words):
            places = range(mention.first, mention.end)
            word_trusts = [trust for place in places if (trust := trusts[place]) is not None]
            probability = min(probabilities[place] for place in places)
            if word_trusts:
                objects.append((min(word_trusts), probability, mention.category in named, at))
        for place, reference in enumerate(references):
            if rest := [*references[:place], *references[place + 1 :]]:
                claims = [x for x in right_words(reference, rest) if x is not None]
                people[at] += sum(claims), len(claims)
    predicted, images = _Predictions.of(captions), len(captioned)
    return {
        "words": _Predictions.of(words).measure(images, "probability"),
        "captions": predicted.measure(images, "score"),
        "objects": _Predictions.of(objects).measure(images, "probability"),
        "marks": measure_marks(captioned, judged),
        **summary({"people": mean_table(people[:, 0], people[:, 1], scale=100)}),
        "review": review_curve(np.array(expected), predicted.score, np.array(wrong, np.float64)),
    }


def measure_marks(captioned: Sequence[Captioned], judged: Sequence[Judgement]) -> dict[str, object]:
    """Measure whether the words marked as doubtful are wrong.

    Returns:
        `wrong`: the percentage of marked words that are wrong.
        `flawed`: among captions with a wrong word, the percentage in which a wrong word is marked.
        `right`: among captions without a wrong word, the percentage in which a word is marked.
        `per_right`: the number of marks per caption without a wrong word.
        `intervals`: the 95 % intervals of these values.
    """
    counts = np.zeros((len(captioned), 7))
    for row, caption, judgement in zip(counts, captioned, judged, strict=True):
        right = right_words(caption.words, caption.image.words)
        marked = [
            trust is not None
            and trust < (DOUBTFUL_SUBJECT if place == judgement.subject else DOUBTFUL)
            for place, trust in enumerate(judgement.words)
        ]
        hit = sum(mark and is_right is False for mark, is_right in zip(marked, right, strict=True))
        is_flawed, count = False in right, sum(marked)
        row[:2] = hit, count
        row[2:4] = is_flawed and hit > 0, is_flawed
        row[4:] = not is_flawed and count > 0, not is_flawed, 0 if is_flawed else count
    hits, marks, detected, flawed, marked_right, right_captions, false_marks = counts.T
    return summary(
        {
            "wrong": mean_table(hits, marks, scale=100),
            "flawed": mean_table(detected, flawed, scale=100),
            "right": mean_table(marked_right, right_captions, scale=100),
            "per_right": mean_table(false_marks, right_captions),
        }
    )


def review_curve(expected: Floats, score: Floats, wrong: Floats) -> list[dict[str, float]]:
    """Return the share of wrong words found by reviewing a share of the captions.

    This is a risk-coverage curve (El-Yaniv and Wiener 2010). In a random order, the share found
    would equal the share reviewed.

    Args:
        expected: (N,), the expected number of wrong words of each caption, from their trust.
        score: (N,), the scores of the captions.
        wrong: (N,), the actual number of wrong words.

    Returns:
        One dictionary per share `reviewed`: the share of wrong words found when captions are
        reviewed in order of trust (`found`), of score (`by_score`), or in the best order (`ideal`).
    """
    orders = {"found": -expected, "by_score": score, "ideal": -wrong}
    curves = {
        name: wrong[np.argsort(order, kind="stable")].cumsum() / max(wrong.sum(), 1)
        for name, order in orders.items()
    }
    sizes = {share: max(1, round(share * len(wrong))) for share in _SHARES} if len(wrong) else {}
    return [
        {"reviewed": share, **{name: float(curve[size - 1]) for name, curve in curves.items()}}
        for share, size in sizes.items()
    ]
