"""Trust: the probability that a word, or a whole caption, is right.

A word that names something counts as right if a person who described the photo used it or a
synonym. A logistic regression estimates from three numbers whether a word is right: the probability
of the word; the share of people who use it, averaged over all photos; and the share of people who
would use it for this photo. The third number does not depend on the sentence: a ridge regression
predicts it from the mean of the photo's grid. A caption is right if all its naming words are right.
The trust of a caption is computed from the product of the trusts of these words.

`captioner trust` writes the coefficients to CHECKPOINT.trust.safetensors, beside the checkpoint,
with the statistics of captioner.trust.familiarity and captioner.trust.consensus. The file is valid
for exactly these weights. Without the file, captions have no trust, and a beam's most probable
sentence is returned.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from captioner.errors import CheckpointFormatError
from captioner.hub import TRUST
from captioner.shared.files import HEADER_KEY, replace_file, writing
from captioner.shared.paths import HUGGING_FACE, checkpoint_file, expanded
from captioner.trust.consensus import Consensus
from captioner.trust.familiarity import UNFAMILIAR, Familiarity, multiply
from captioner.vocabulary import SPECIAL_TOKENS

if TYPE_CHECKING:
    from captioner.generation.beam_search import Hypothesis

DOUBTFUL = 0.55
"""Words with less trust are marked as doubtful (docs/trust.md)."""
DOUBTFUL_SUBJECT = 0.75
"""Like DOUBTFUL, but for the subject, which is the first noun of a caption."""
DOUBTFUL_CAPTION = 0.01
"""Captions with less trust get a warning."""

_KEY = "trust"
# Fields whose names in the file are those of version 0.2.
_NAMES = {
    "idf": "rarity",
    "mean_references": "usual",
    "coefficients": "slopes",
    "feature_mean": "middle",
}
_FIELDS = {stored: field for field, stored in _NAMES.items()}
# What reading a damaged file may raise.
_DAMAGE = (SafetensorError, OSError, LookupError, AttributeError, TypeError, ValueError,
           RecursionError)  # fmt: skip
_MINIMUM_SHARE = 1e-3  # a regression may predict a negative share


class Judgement(NamedTuple):
    """The trust of a sentence.

    words: the trust of each word; None for words that make no claim, such as "the".
    caption: the trust of the whole sentence; None if no word makes a claim.
    subject: the index of the first noun, or None.
    """

    words: list[float | None]
    caption: float | None
    subject: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class WordFeatures:
    """A ridge regression from the mean of a grid to the words that people would use.

    kinds: (V,) integers, the kind of each word in the vocabulary, from 0 to C - 1. "dog" and "dogs"
        are one kind. -1 for words without a claim, such as "the", "group" or "next". Tokens beyond
        the vocabulary have the last kind.
    feature_mean: (D,), the mean of the training photos' features.
    coefficients: (D, C).
    shares: (C,), the share of people who use a word of this kind, averaged over all photos.
    nouns: (V,), 1 for nouns; None in files of version 0.1.
    """

    kinds: NDArray[Any]
    feature_mean: NDArray[Any]
    coefficients: NDArray[Any]
    shares: NDArray[Any]
    nouns: NDArray[Any] | None = None

    def __call__(self, pooled: NDArray[Any]) -> NDArray[Any]:
        """Predict the shares of people (B, C) from pooled grids (B, D + 1)."""
        offset = pooled[:, :-1] - self.feature_mean
        shares: NDArray[Any] = self.shares + multiply(offset, self.coefficients)
        return shares

    def is_noun(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether tokens (T,) are nouns; False for tokens that the file does not list."""
        nouns = np.zeros(1) if self.nouns is None else self.nouns
        is_noun: NDArray[np.bool_] = _look_up(nouns, tokens, beyond=0) > 0
        return is_noun


@dataclass(frozen=True, kw_only=True, eq=False)
class Trust:
    """The statistics of a checkpoint's trust file.

    word: (4,), intercept and coefficients of `word_clues`.
    caption: (2,), intercept and coefficient of the summed log-trusts of a caption's words.
    weights: digest of the checkpoint's weights, see digest_weights.
    consensus: None if there were too few photos to fit it.
    words: the words of the vocabulary, for models that have no vocabulary, such as Hugging Face
        models; otherwise empty.
    """

    familiarity: Familiarity
    word_features: WordFeatures
    word: NDArray[Any]
    caption: NDArray[Any]
    weights: str
    consensus: Consensus | None = None
    words: tuple[str, ...] = ()

    def assess(
        self, pooled: NDArray[Any], beams: Sequence[Sequence[Hypothesis]]
    ) -> tuple[list[list[Judgement]], list[float]]:
        """Judge the sentences of B photos; also return the photos' familiarity.

        The regressions were fitted on photos like the training photos. If a photo's familiarity is
        below UNFAMILIAR, the trust of its captions is limited to that familiarity.

        Args:
            pooled: (B, D + 1), the photos' pooled grids.
            beams: the sentences of each photo.
        """
        shares, familiarities = self.word_features(pooled), self.familiarity.of(pooled)
        limits = [value if value < UNFAMILIAR else 1.0 for value in familiarities]
        judgements = [
            [self._judge(hypothesis, shares_of_photo, limit) for hypothesis in beam]
            for beam, shares_of_photo, limit in zip(beams, shares, limits, strict=True)
        ]
        return judgements, familiarities

    def _judge(self, hypothesis: Hypothesis, shares: NDArray[Any], limit: float) -> Judgement:
        """Judge a sentence, whose trust is at most `limit`; `shares` (C,) are of its photo."""
        clues, kinds = word_clues(self.word_features, shares, hypothesis)
        trusts = _sigmoid(self.word[0] + clues @ self.word[1:])
        trusts = trusts.clip(min=1e-6)  # the logarithm below needs positive numbers
        is_claim = kinds >= 0
        nouns = np.flatnonzero(is_claim & self.word_features.is_noun(hypothesis.tokens))
        words = zip(trusts.tolist(), is_claim.tolist(), strict=True)
        whole = _sigmoid(self.caption[0] + self.caption[1] * np.log(trusts[is_claim]).sum())
        return Judgement(
            [trust if claim else None for trust, claim in words],
            min(float(whole), limit) if is_claim.any() else None,
            int(nouns[0]) if len(nouns) else None,
        )

    def save(self, path: Path) -> None:
        """Write the trust file.

        Raises OutputError: the file cannot be written.
        """
        tensors = {"word": self.word, "caption": self.caption}
        parts: dict[str, Any] = {"familiarity": self.familiarity, "sight": self.word_features}
        if self.consensus is not None:
            parts["consensus"] = self.consensus
        for prefix, part in parts.items():
            for name, array in asdict(part).items():
                if array is not None:
                    tensors[f"{prefix}.{_NAMES.get(name, name)}"] = array
        tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        header = {"weights": self.weights, **({"words": self.words} if self.words else {})}
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as file:
            file.write(save(tensors, metadata={_KEY: json.dumps(header)}))

    @classmethod
    def for_checkpoint(
        cls, checkpoint: str | os.PathLike[str], *, digest: Callable[[], str] | None = None
    ) -> Trust | None:
        """Read the trust file of a checkpoint.

        Args:
            checkpoint: as for `trust_file`.
            digest: digests the weights; None: `digest_weights` of the file.

        Returns None if there is no trust file, or if it belongs to other weights.

        Raises CheckpointFormatError: the trust file is damaged.
        """
        path = trust_file(checkpoint)
        if not path.is_file():
            return None
        digest = digest or partial(digest_weights, checkpoint_file(checkpoint))
        try:
            with safe_open(path, framework="np") as file:
                header = json.loads((file.metadata() or {})[_KEY])
                if header["weights"] != digest():
                    return None
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            parts: defaultdict[str, dict[str, NDArray[Any]]] = defaultdict(dict)
            for name, array in tensors.items():
                if not np.isfinite(array).all():
                    raise ValueError(f"{name} has values that are not finite")
                part, dot, stored = name.partition(".")
                if dot:
                    is_float = array.dtype.kind == "f"
                    field = _FIELDS.get(stored, stored)
                    parts[part][field] = array.astype(np.float32) if is_float else array
            trust = cls(
                familiarity=Familiarity(**parts["familiarity"]),
                word_features=WordFeatures(**parts["sight"]),
                word=tensors["word"],
                caption=tensors["caption"],
                weights=header["weights"],
                words=tuple(header.get("words", ())),
                consensus=Consensus(**parts["consensus"]) if "consensus" in parts else None,
            )
            _check(trust)
            return trust
        except _DAMAGE as error:
            raise CheckpointFormatError(
                f"{path} is damaged or not a trust file ({error}): remove it, or write it "
                "again with `captioner trust`"
            ) from error


def _check(trust: Trust) -> None:
    """Raise ValueError if the parts of a file do not fit together."""
    words, familiarity = trust.word_features, trust.familiarity
    features, kinds = words.coefficients.shape
    shapes = [
        (trust.word, (4,)),
        (trust.caption, (2,)),
        (words.shares, (kinds,)),
        (words.feature_mean, (features,)),
        (familiarity.mean, (features,)),
        (familiarity.directions, (features, *familiarity.widths.shape)),
        (familiarity.rest.reshape(-1), (1,)),
        (familiarity.quantiles, (familiarity.quantiles.size,)),
        (familiarity.spreads, (familiarity.quantiles.size,)),
        (words.kinds, (words.kinds.size,)),
    ]
    if words.kinds.dtype.kind != "i" or any(part.shape != shape for part, shape in shapes):
        raise ValueError("its parts do not fit together")
    if not -1 <= words.kinds.min() <= words.kinds.max() < kinds:
        raise ValueError("some words have an unknown kind")
    if trust.words and len(trust.words) + len(SPECIAL_TOKENS) != words.kinds.size:
        raise ValueError("some words have no kind")


def _look_up(values: NDArray[Any], tokens: Sequence[int], *, beyond: int) -> NDArray[Any]:
    """Return the values (T,) of tokens; `beyond` for tokens without one."""
    numbers = np.asarray(tokens, np.int64)
    known = values[numbers.clip(max=len(values) - 1)]
    found: NDArray[Any] = np.where(numbers < len(values), known, beyond)
    return found


def _sigmoid(values: Any) -> Any:
    return (1 + np.tanh(values / 2)) / 2  # exp(-values) would overflow


def word_clues(
    features: WordFeatures, shares: NDArray[Any], hypothesis: Hypothesis
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the regression's inputs (T, 3), and the kinds (T,), of the T words of a sentence.

    The columns are three logarithms: of the share of people who would use the word for this photo,
    predicted in `shares` (C,); of the average share over all photos; and of the word's probability.
    Rows of words without a claim have no meaning.
    """
    kinds = _look_up(features.kinds, hypothesis.tokens, beyond=len(features.shares) - 1)
    columns = np.stack([shares[kinds], features.shares[kinds]]).clip(min=_MINIMUM_SHARE)
    return np.stack([*np.log(columns), hypothesis.log_probabilities[:-1].numpy()], axis=1), kinds


def trust_file(checkpoint: str | os.PathLike[str]) -> Path:
    """Return the path of a checkpoint's trust file.

    The file is beside the checkpoint. For a Hugging Face model on the Hub it is in the assets
    folder of huggingface_hub's cache.
    """
    name = os.fspath(checkpoint)
    if name.startswith(HUGGING_FACE):
        name = name.removeprefix(HUGGING_FACE)
        if expanded(name).is_dir():
            return expanded(name) / TRUST
        from huggingface_hub.constants import HF_ASSETS_CACHE

        return Path(HF_ASSETS_CACHE, "captioner", name.replace("/", "--") + ".trust.safetensors")
    path = checkpoint_file(checkpoint)
    # Not with_suffix, which would cut the version from a name like model-1.5.
    return path.with_name(path.name.removesuffix(".safetensors") + ".trust.safetensors")


def digest_weights(checkpoint: Path) -> str:
    """Return a digest of weights and settings; the name and the scores do not change it."""
    with checkpoint.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(json.loads(file.read(size))["__metadata__"][HEADER_KEY])
        settings = {
            name: header.get(name)
            for name in ("encoder", "decoder", "transform", "vocabulary", "styles")
        }
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()[:16]
