"""Fitting trust in words and captions, and asking whether it is earned; see captioner.trust.

What a second look sees is learned from the training photos: ridge regression from the mean of a
photo's grid to the share of its references that say a word of each kind. The two logistic
regressions are fitted on captions of photos that nothing was trained on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
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

__all__ = [
    "FEWEST_PHOTOS",
    "fit_logistic",
    "fit_trust",
    "fit_word_features",
    "measure_marks",
    "measure_trust",
    "review_curve",
]

FEWEST_PHOTOS = 100
"""Of training, and of validation: of fewer what is learned is noise."""

_RIDGE = 0.08  # of a photo each; a third and three times as much give the same to 0.003 of AUROC
_FEWEST = 100  # words
_SHARES = tuple(share / 20 for share in range(1, 21))


def fit_word_features(
    pooled: NDArray[np.float32], images: Sequence[CaptionedImage], vocabulary: Vocabulary
) -> WordFeatures:
    """Learn how often people say words of a photo.

    Args:
        pooled: (N, D + 1), the grids of training photos; see captioner.trust.familiarity.pool.
        images: these photos with their references.
        vocabulary: of the model; words that stand for one another have a kind each, and are sought
            together.

    Raises DataError: the photos are all alike.
    """
    vocabulary_words = _words(vocabulary)
    stems = [stem(word) if is_claim(word) else None for word in vocabulary_words]
    nouns = count_nouns(words for image in images for words in image.words)
    columns = {kind: at for at, kind in enumerate(dict.fromkeys(filter(None, stems)))}
    shares = _reference_shares(images, columns)
    references = [len(image.words) for image in images]
    common = (shares > 0).sum(axis=0) >= fewest_photos(len(images))
    ridge = Ridge.fit(pooled, shares[:, common], references, strength=_RIDGE)
    # Kinds that are too rare share a last column, which knows nothing of the photo.
    column = np.where(common, common.cumsum() - 1, common.sum())
    rare = 0.0
    if not common.all():
        rare = np.average(shares[:, ~common], axis=0, weights=references).mean()
    if not (np.abs(ridge.slopes) <= np.finfo(np.float16).max).all():  # NaN too
        raise DataError("the photos are too much alike to learn from when words are right")
    return WordFeatures(
        kinds=np.array([-1 if one is None else int(column[columns[one]]) for one in stems]),
        middle=ridge.middle.astype(np.float32),
        slopes=np.pad(ridge.slopes, ((0, 0), (0, 1))).astype(np.float16),
        shares=np.append(ridge.usual, rare).astype(np.float32),
        nouns=np.array([word in nouns for word in vocabulary_words], np.int8),
    )


def _reference_shares(
    images: Sequence[CaptionedImage], columns: Mapping[str, int]
) -> NDArray[np.float32]:
    """Count (N, C), in what share of its references a photo has each stem or a synonym of it."""
    columns_of: dict[str, set[int]] = defaultdict(set)  # that a stem of a reference counts for
    for kind, at in columns.items():
        for other in synonyms(kind):
            columns_of[other].add(at)
    shares = np.zeros((len(images), len(columns)), np.float32)
    for row, image in zip(shares, images, strict=True):
        for words in image.words:
            row[list({at for one in stems_of([words]) for at in columns_of.get(one, ())})] += 1
        row /= len(image.words)
    return shares


def _words(vocabulary: Vocabulary) -> list[str]:
    """Give the word of each token; those that stand for none count as function words."""
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
        captioned: photos that the model has not learned from, with its captions.
        pooled: (N, D + 1), their grids.
        word_features: of the model.
        familiarity: of the model.
        weights: see captioner.trust.digest_weights.
        consensus: that chose the captions.
        words: see Trust.

    Raises DataError: the captions have too few words that name something.
    """
    clues, kinds = word_clues(word_features, pooled, [[one.hypothesis] for one in captioned])
    right = [
        is_right
        for one in captioned
        for is_right in right_words(one.words, one.image.words)
        if is_right is not None
    ]
    if len(right) < _FEWEST:
        raise DataError(
            f"the captions of the validation photos have {len(right)} words that name something, "
            f"too few to say when such are right: {_FEWEST}"
        )
    word = fit_logistic(clues[torch.from_numpy(kinds >= 0)].numpy(), right).astype(np.float32)
    trust = Trust(
        familiarity=familiarity,
        word_features=word_features,
        word=word,
        caption=np.array([0.0, 1.0], np.float32),
        weights=weights,
        consensus=consensus,
        words=words,
    )
    sums, whole = [], []
    for one, (judged,) in zip(
        captioned, trust.judge(pooled, [[one.hypothesis] for one in captioned]), strict=True
    ):
        if judged.caption is not None:
            sums.append([np.log([each for each in judged.words if each is not None]).sum()])
            whole.append(False not in right_words(one.words, one.image.words))
    caption = fit_logistic(np.array(sums), whole).astype(np.float32)
    return replace(trust, caption=caption)


def fit_logistic(clues: Floats, right: Sequence[bool]) -> Floats:
    """Fit a logistic regression, by Newton's method.

    Coefficients of clues of width 1 are pulled towards 0 as by one observation, so that words that
    are all right have a finite trust.

    Args:
        clues: (N, P).
        right: (N,).

    Returns:
        (1 + P,), the constant and the slopes.
    """
    middle, width = clues.mean(axis=0), clues.std(axis=0) + 1e-9
    columns = np.concatenate([np.ones((len(clues), 1)), (clues - middle) / width], axis=1)
    true, found = np.asarray(right, np.float64), np.zeros(columns.shape[1])
    for _ in range(30):
        said = (1 + np.tanh(columns @ found / 2)) / 2
        slope = columns.T @ (said - true) + found
        curve = (columns.T * (said * (1 - said))) @ columns + np.eye(len(found))
        found = found - np.linalg.solve(curve, slope)
    slopes = found[1:] / width
    return np.concatenate([[found[0] - middle @ slopes], slopes])


class _Predictions(NamedTuple):
    """N words or captions: their trust, another score, whether they are right, their image."""

    trust: Floats
    score: Floats
    right: Floats
    image: Floats

    @classmethod
    def of(cls, rows: Sequence[tuple[float, float, bool, int]]) -> _Predictions:
        return cls(*np.array(rows, np.float64).reshape(-1, 4).T)

    def measure(self, images: int, plain: str) -> dict[str, object]:
        """Return how well trust tells right from wrong, beside the score called `plain`."""
        image = self.image.astype(int)
        count = np.bincount(image, minlength=images)
        right = np.bincount(image, self.right, minlength=images)
        error, bins = reliability(self.trust, self.right, image, images=images)
        tables = {
            "right": mean_table(right, count, scale=100),
            "auroc": ranking_table(self.trust, self.right, image, images=images),
            f"auroc_{plain}": ranking_table(self.score, self.right, image, images=images),
            "error": error,
        }
        return {"count": len(image), **summary(tables), "bins": bins}


def measure_trust(captioned: Sequence[Captioned], judged: Sequence[Judgement]) -> dict[str, object]:
    """Measure whether words and captions are right as often as they are trusted.

    Args:
        captioned: a split.
        judged: the trust in its captions.

    Returns:
        `words`, `captions` (right: all their words are) and `objects` (words for COCO's categories;
        right: a reference names the category): their number, the share that is right, the AUROC of
        trust and of the probability or score, the calibration error; `marks`, see measure_marks;
        `people`, the share of people's words that another reference of the photo has; `review`, see
        review_curve.
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
            known = [trust for place in places if (trust := trusts[place]) is not None]
            probability = min(probabilities[place] for place in places)
            if known:
                objects.append((min(known), probability, mention.category in named, at))
        for place, reference in enumerate(references):
            if others := [*references[:place], *references[place + 1 :]]:
                own = [x for x in right_words(reference, others) if x is not None]
                people[at] += sum(own), len(own)
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
    """Measure whether doubtful words are the wrong ones.

    Returns:
        In percent with `intervals`: `wrong`, the share of marked words that are wrong; `flawed`,
        the share of captions with a wrong word in which a wrong word is marked; `right`, the share
        of captions without a wrong word in which a word is marked. `per_right`, marks per caption
        without a wrong word.
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
    hits, marks, found, flawed, doubted, right_captions, wasted = counts.T
    return summary(
        {
            "wrong": mean_table(hits, marks, scale=100),
            "flawed": mean_table(found, flawed, scale=100),
            "right": mean_table(doubted, right_captions, scale=100),
            "per_right": mean_table(wasted, right_captions),
        }
    )


def review_curve(expected: Floats, score: Floats, wrong: Floats) -> list[dict[str, float]]:
    """Say how many of the wrong words a person sees who reads the captions with most of them.

    The risk-coverage curve of El-Yaniv and Wiener 2010, for work instead of silence.

    Args:
        expected: (N,), how many words of a caption are wrong, as its words' trust has it.
        score: (N,), of captions.
        wrong: (N,), how many of their words are wrong.

    Returns:
        For shares of the captions: `reviewed`, and of all wrong words the shares that are `found`
        so, `by_score`, and at best, `ideal`. By chance it is `reviewed` itself.
    """
    orders = {"found": -expected, "by_score": score, "ideal": -wrong}
    seen = {
        name: wrong[np.argsort(by, kind="stable")].cumsum() / max(wrong.sum(), 1)
        for name, by in orders.items()
    }
    sizes = {share: max(1, round(share * len(wrong))) for share in _SHARES} if len(wrong) else {}
    return [
        {"reviewed": share, **{name: float(each[size - 1]) for name, each in seen.items()}}
        for share, size in sizes.items()
    ]
