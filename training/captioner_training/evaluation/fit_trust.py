"""Fit the trust, familiarity and consensus of a checkpoint; see captioner.trust.

Word features are fitted on the training photos: ridge regression from the mean features of a
photo's grid to the share of its references with each kind of word. Two logistic regressions, for
words and for captions, are fitted on captions of held-out photos. Consensus predicts the n-grams of
a photo's references, also by ridge regression.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from captioner.captioner import Captioner
from captioner.errors import DataError
from captioner.shared.paths import checkpoint_file
from captioner.trust.consensus import ORDERS, Consensus, NGram, n_grams
from captioner.trust.familiarity import Familiarity, pool
from captioner.trust.trust import Trust, WordFeatures, digest_weights, trust_file, word_clues
from captioner.vocabulary import UNK, Vocabulary
from captioner_training.data.images import Captioned, CaptionedImage
from captioner_training.data.pixels import split_loader
from captioner_training.evaluation.bootstrap import Floats
from captioner_training.evaluation.captioning import caption_images
from captioner_training.evaluation.measure_trust import measure_trust
from captioner_training.evaluation.words import (
    count_nouns,
    is_claim,
    right_words,
    stem,
    stems_of,
    synonyms,
)
from captioner_training.report.measures import Table

References = Sequence[Sequence[Sequence[int]]]
"""The references of each photo as token ids."""

MIN_PHOTOS = 100
"""Least number of training photos, and of held-out photos, for fitting."""

MIN_FOR_CONSENSUS = 3000
"""Least number of training photos. With fewer, consensus does not help (docs/results.md)."""

_MIN_WORDS = 100
_WORD_RIDGE = 0.08  # strength of the regularisation per photo
_CONSENSUS_RIDGE = 0.3
_CONSTANT = 1e-3  # strength of the regularisation of a logistic regression's constant
_STEPS = 127  # largest int8
_MIN_SHARE = 600  # one in this many photos
_MIN_OCCURRENCES = 5


def write_trust(
    captioner: Captioner,
    checkpoint: str | os.PathLike[str],
    train: Sequence[CaptionedImage],
    held_out: Sequence[CaptionedImage],
) -> list[str]:
    """Fit trust, familiarity and consensus of a checkpoint and write them beside it.

    Args:
        captioner: the checkpoint, loaded without its trust. Its consensus is replaced.
        checkpoint: the path of the checkpoint, or "hf:" and the name of a Hugging Face model.
        train: photos that the model was trained on.
        held_out: photos that it was not trained on. Every second one is used for fitting; the
            quality of trust is measured on the rest.

    Returns messages about the quality of trust, and about parts that were not fitted.
    """
    seen, is_ours = pooled_grids(captioner, train), captioner.source is None
    notes, captioner.consensus = [], None
    if len(train) >= MIN_FOR_CONSENSUS:
        captioner.consensus = fit_consensus(seen, train, captioner.vocabulary)
    else:
        notes.append(
            f"No consensus is fitted: it needs {MIN_FOR_CONSENSUS:,} training photos, there are "
            f"{len(train):,}."
        )
    parts: list[NDArray[np.float32]] = []
    captioned = caption_images(
        captioner,
        held_out,
        captioner.generation,
        on_batch=lambda grid, _: parts.append(pool(grid.features)),
    )
    pooled, vocabulary = np.concatenate(parts), captioner.vocabulary
    if not is_ours:  # its vocabulary has only words of captions so far; add those of references
        for image in train:
            for words in image.words:
                vocabulary.encode(words)
    trust = fit_trust(
        captioned[::2],
        pooled[::2],
        word_features=fit_word_features(seen, train, vocabulary),
        familiarity=Familiarity.fit(seen, pooled),
        weights=digest_weights(checkpoint_file(checkpoint)) if is_ours else captioner.fingerprint,
        consensus=captioner.consensus,
        words=() if is_ours else vocabulary.ordinary_words,
    )
    rest = captioned[1::2]
    judged = trust.assess(pooled[1::2], [[caption.hypothesis] for caption in rest])[0]
    report = {"trust": measure_trust(rest, [best for (best,) in judged])}
    trust.save(trust_file(checkpoint))
    rows = Table.of([""], [report]).rows
    return [*notes, *(f"Held-out photos: {measure.title}: {text}" for measure, (text,) in rows)]


def pooled_grids(captioner: Captioner, images: Sequence[CaptionedImage]) -> NDArray[np.float32]:
    """Return the pooled grids (N, D + 1) of photos; see captioner.trust.familiarity.pool."""
    loader = split_loader(images, captioner.transform, workers=2, batch_size=captioner.batch_size)
    parts = [
        pool(captioner.encode(pixels).features)
        for pixels in tqdm(loader, desc="photos", leave=False, disable=None)
    ]
    return np.concatenate(parts)


def fit_word_features(
    pooled: NDArray[np.float32], images: Sequence[CaptionedImage], vocabulary: Vocabulary
) -> WordFeatures:
    """Fit, for each kind of word, the probability that a reference of a photo contains it.

    Words with the same stem are one kind. A synonym in a reference counts too. `pooled` (N, D + 1)
    are the pooled grids of the photos.

    Raises DataError: the photos are too similar.
    """
    words_of_tokens = ["".join(vocabulary.decode_plain([at])) for at in range(len(vocabulary))]
    stems = [stem(word) if is_claim(word) else None for word in words_of_tokens]
    nouns = count_nouns(words for image in images for words in image.words)
    columns = {kind: at for at, kind in enumerate(dict.fromkeys(filter(None, stems)))}
    shares = _reference_shares(images, columns)
    references = [len(image.words) for image in images]
    common = (shares > 0).sum(axis=0) >= min_photos(len(images))
    ridge = Ridge.fit(pooled, shares[:, common], references, alpha=_WORD_RIDGE)
    # Rare kinds share the last column, which does not depend on the photo.
    column = np.where(common, common.cumsum() - 1, common.sum())
    rare = 0.0
    if not common.all():
        rare = np.average(shares[:, ~common], axis=0, weights=references).mean()
    if not (np.abs(ridge.coefficients) <= np.finfo(np.float16).max).all():  # also refuses NaN
        raise DataError("trust cannot be fitted: the training photos are too similar: add others")
    return WordFeatures(
        kinds=np.array([-1 if kind is None else int(column[columns[kind]]) for kind in stems]),
        feature_mean=ridge.feature_mean.astype(np.float32),
        coefficients=np.pad(ridge.coefficients, ((0, 0), (0, 1))).astype(np.float16),
        shares=np.append(ridge.intercept, rare).astype(np.float32),
        nouns=np.array([word in nouns for word in words_of_tokens], np.int8),
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
    """Fit the trust in words and captions on the model's captions of held-out photos.

    `pooled` (N, D + 1) are the pooled grids of the photos. For the other arguments see Trust.

    Raises DataError: the captions have too few content words.
    """
    beams = [[caption.hypothesis] for caption in captioned]
    pairs = zip(word_features(pooled), captioned, strict=True)
    words_of = [word_clues(word_features, shares, caption.hypothesis) for shares, caption in pairs]
    clues, kinds = (np.concatenate(parts) for parts in zip(*words_of, strict=True))
    rights = [right_words(caption.words, caption.image.words) for caption in captioned]
    outcomes = [is_right for right in rights for is_right in right if is_right is not None]
    if len(outcomes) < _MIN_WORDS:
        raise DataError(
            f"trust cannot be fitted: the captions of the validation photos have {len(outcomes)} "
            f"content words; at least {_MIN_WORDS} are needed"
        )
    word = fit_logistic(clues[kinds >= 0], outcomes).astype(np.float32)
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
    for right, (judgement,) in zip(rights, trust.assess(pooled, beams)[0], strict=True):
        if judgement.caption is not None:
            sums.append([np.log([value for value in judgement.words if value is not None]).sum()])
            flawless.append(False not in right)
    return replace(trust, caption=fit_logistic(np.array(sums), flawless).astype(np.float32))


def fit_logistic(clues: Floats, right: Sequence[bool]) -> Floats:
    """Fit a logistic regression by Newton's method.

    An L2 penalty on the slopes of standardised clues keeps them finite. The constant has almost
    none, so that the mean prediction is the share of right outcomes; it is finite if all are right.

    Returns (1 + P,), the constant and the slopes, from inputs (N, P) and outcomes (N,).
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


def fit_consensus(
    pooled: NDArray[np.float32], images: Sequence[CaptionedImage], vocabulary: Vocabulary
) -> Consensus | None:
    """Fit the expected n-grams of a photo by ridge regression from its pooled grid.

    `pooled` (N, D + 1) are the pooled grids of the photos. Returns None if no n-gram occurs in
    enough photos.
    """
    references = [[vocabulary.encode(words) for words in image.words] for image in images]
    idfs = [_idfs(references, order) for order in ORDERS]
    grams = [gram for idf_of in idfs for gram in idf_of]
    if not grams:
        return None
    idf = [value for idf_of in idfs for value in idf_of.values()]
    orders = zip(idfs, ORDERS, strict=True)
    parts = [_means(references, idf_of, order, max(idf)) for idf_of, order in orders]
    means = np.concatenate(parts, axis=1)
    counts = [len(captions) for captions in references]
    ridge = Ridge.fit(pooled, means, counts, alpha=_CONSENSUS_RIDGE)
    scales = np.abs(ridge.coefficients).max(axis=0).clip(min=1e-12) / _STEPS
    return Consensus(
        grams=np.array([(*gram, -1)[: len(ORDERS)] for gram in grams], np.int32),
        idf=np.array(idf, np.float32),
        mean_references=ridge.intercept.astype(np.float32),
        coefficients=(ridge.coefficients / scales).round().T.astype(np.int8),
        scales=scales.astype(np.float32),
        feature_mean=ridge.feature_mean.astype(np.float32),
    )


def _idfs(references: References, order: int) -> dict[NGram, float]:
    """Return the inverse document frequencies of the n-grams that enough photos have."""
    photos = Counter(
        gram
        for captions in references
        for gram in {gram for tokens in captions for gram in n_grams(tokens, order)}
    )
    least = min_photos(len(references))
    return {
        gram: math.log(len(references) / count)
        for gram, count in photos.items()
        if count >= least and UNK not in gram
    }


def _means(
    references: References, idfs: dict[NGram, float], order: int, max_idf: float
) -> NDArray[np.float32]:
    """Return the mean of the normalised tf-idf vectors of a photo's references: (N, n-grams)."""
    columns = {gram: at for at, gram in enumerate(idfs)}
    means = np.zeros((len(references), len(idfs)), np.float32)
    for row, captions in zip(means, references, strict=True):
        for tokens in captions:
            counts = Counter(n_grams(tokens, order))
            weights = {gram: n * idfs.get(gram, max_idf) for gram, n in counts.items()}
            length = math.hypot(*weights.values()) or 1.0
            for gram in weights.keys() & columns:
                row[columns[gram]] += weights[gram] / length / len(captions)
    return means


def min_photos(photos: int) -> int:
    """Return the least number of training photos, of `photos`, that an n-gram must occur in."""
    return max(_MIN_OCCURRENCES, -(-photos // _MIN_SHARE))


class Ridge(NamedTuple):
    """A linear model of T targets: intercept + (mean of a grid - feature_mean) @ coefficients.

    The shapes are (D,) for feature_mean, (T,) for intercept and (D, T) for coefficients.
    """

    feature_mean: Floats
    intercept: Floats
    coefficients: Floats

    @classmethod
    def fit(
        cls,
        pooled: NDArray[np.float32],
        targets: NDArray[np.float32],
        references: Sequence[int],
        *,
        alpha: float,
    ) -> Ridge:
        """Fit targets (N, T) to pooled grids (N, D + 1).

        A photo's weight is its number of references (N,). `alpha` is the regularisation per photo,
        for features of unit variance.
        """
        weights = np.array(references, np.float64)
        weights /= weights.mean()
        means = pooled[:, :-1].astype(np.float64)
        middle = means.mean(axis=0)
        width = means.std(axis=0, ddof=1).clip(min=1e-6)
        offset = (means - middle) / width
        weighted = offset.T * weights
        # Targets stay in float32: in float64 they take gigabytes.
        intercept = (weights.astype(np.float32) @ targets) / len(targets)
        square = weighted @ offset + alpha * len(targets) * np.eye(len(width))
        product = weighted.astype(np.float32) @ targets - np.outer(weighted.sum(axis=1), intercept)
        return cls(middle, intercept, np.linalg.solve(square, product) / width[:, np.newaxis])
