"""Trust: the probability that a word, or a whole caption, is right.

A word that names something is right where one of the people who described the photo says it too, or
a synonym. How likely that is, a logistic regression tells from three numbers: its own probability;
how often people say it of any photo; and how often they would say it of this one. That last one is
a second look, which does not depend on the sentence: a ridge regression from the mean of the
photo's grid. A caption is right where all such words are; the product of their trusts tells that.

The numbers are in a file beside the checkpoint, CHECKPOINT.trust.safetensors, which `captioner
trust` writes, with the statistics of captioner.trust.familiarity and captioner.trust.consensus. It
belongs to exactly these weights. Without it captions have no trust, and a beam's most probable
sentence is chosen.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from captioner.errors import CheckpointFormatError
from captioner.files import HEADER_KEY, replace_file
from captioner.paths import checkpoint_file
from captioner.trust.consensus import Consensus
from captioner.trust.familiarity import UNFAMILIAR, Familiarity

if TYPE_CHECKING:
    from captioner.generation.hypothesis import Hypothesis

__all__ = [
    "DOUBTFUL",
    "DOUBTFUL_CAPTION",
    "DOUBTFUL_SUBJECT",
    "Judgement",
    "Sight",
    "Trust",
    "digest_weights",
    "trust_file",
    "word_clues",
]

DOUBTFUL = 0.55
"""A word with less trust is marked (docs/results.md#trust)."""
DOUBTFUL_SUBJECT = 0.75
"""The subject, the first noun of a caption, is marked below this trust."""
DOUBTFUL_CAPTION = 0.01
"""A caption with less trust has a warning."""

T = TypeVar("T")

_KEY = "trust"
_LEAST = 1e-3  # of what a regression says, which may be below zero


class Judgement(NamedTuple):
    """The trust in each word of a sentence and in all of it; None for words without a claim.

    subject: the place of the first noun, or None.
    """

    words: list[float | None]
    caption: float | None
    subject: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Sight:
    """How often people would say a word of a photo, from the mean of its grid.

    kinds: (V,), which of C kinds of words, such as "dog" and "dogs", each of the vocabulary is; -1
    for words without a claim, such as "the", "group" or "next". middle: (D,); slopes: (D, C);
    shares: (C,), how often people say a word of this kind of any photo; nouns: (V,), 1 for nouns,
    or None in files of version 0.1.
    """

    kinds: NDArray[Any]
    middle: NDArray[Any]
    slopes: NDArray[Any]
    shares: NDArray[Any]
    nouns: NDArray[Any] | None = None

    def __call__(self, pooled: NDArray[Any]) -> NDArray[Any]:
        """Give the shares (B, C) of people from pooled grids (B, D + 1)."""
        offset = pooled[:, :-1] - self.middle
        # Not `@`: numpy's BLAS has threads of its own, which stay busy for a while when they are
        # done and keep the model from the cores (docs/performance.md).
        seen: NDArray[Any] = np.einsum("bd,dc->bc", offset, self.slopes.astype(np.float32))
        seen += self.shares
        return seen


@dataclass(frozen=True, kw_only=True, eq=False)
class Trust:
    """What is known of when a checkpoint is right.

    word: (4,), the regression's constant, and the slopes of word_clues; caption: (2,), constant and
    slope of the sum of the logarithms of its words' trusts; weights: see digest_weights; consensus:
    None where too few photos are known to learn it.
    """

    familiarity: Familiarity
    sight: Sight
    word: NDArray[Any]
    caption: NDArray[Any]
    weights: str
    consensus: Consensus | None = None

    def judge(
        self, pooled: NDArray[Any], made: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Judgement]]:
        """Judge sentences, one list a photo, by the photos' pooled grids (B, D + 1).

        What trust is was learned from photos like those of the training. Where familiarity is
        below UNFAMILIAR, no sentence has more trust than the photo has familiarity.
        """
        parts = zip(made, self.sight(pooled), self.familiarity.of(pooled), strict=True)
        return [
            [self._judge(one, seen, known if known < UNFAMILIAR else 1.0) for one in each]
            for each, seen, known in parts
        ]

    def _judge(self, hypothesis: Hypothesis, seen: NDArray[Any], most: float) -> Judgement:
        kinds = self.sight.kinds[hypothesis.tokens]
        logs = np.asarray(hypothesis.log_probabilities[:-1])
        clues = word_clues(self.sight, seen, kinds, logs)
        # Never 0, whose logarithm is no number, however unlike all else a photo is.
        trusts = _sigmoid(self.word[0] + clues @ self.word[1:]).clip(min=1e-6)
        named = kinds >= 0
        words = [
            one if names else None
            for one, names in zip(trusts.tolist(), named.tolist(), strict=True)
        ]
        if not named.any():
            return Judgement(words, None)
        whole = self.caption[0] + self.caption[1] * np.log(trusts[named]).sum()
        subject = None
        if self.sight.nouns is not None:
            nouns = np.flatnonzero(named & (self.sight.nouns[hypothesis.tokens] > 0))
            subject = int(nouns[0]) if len(nouns) else None
        return Judgement(words, min(float(_sigmoid(whole)), most), subject)

    def save(self, path: Path) -> None:
        """Write the file.

        Raises OutputError: it cannot be written.
        """
        parts = {"word": self.word, "caption": self.caption}
        for part in ("familiarity", "sight", "consensus"):
            if (known := getattr(self, part)) is not None:
                fields = asdict(known).items()
                parts |= {f"{part}.{name}": array for name, array in fields if array is not None}
        tensors = {name: np.ascontiguousarray(one) for name, one in parts.items()}
        with replace_file(path) as file:
            file.write(save(tensors, metadata={_KEY: json.dumps({"weights": self.weights})}))

    @classmethod
    def beside(cls, path: str | os.PathLike[str]) -> Trust | None:
        """Read what is known of a checkpoint; None where nothing is, or of other weights.

        Raises CheckpointFormatError: the file is damaged.
        """
        checkpoint, path = checkpoint_file(path), trust_file(path)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="np") as file:
                weights = json.loads((file.metadata() or {})[_KEY])["weights"]
                if weights != digest_weights(checkpoint):
                    return None

                def part(name: str, kind: Callable[..., T]) -> T:
                    """Read in float32, once; most of the file is in less precision."""
                    named = {
                        key.partition(".")[2]: file.get_tensor(key)
                        for key in file.keys()  # noqa: SIM118 -- it is no dict
                        if key.startswith(f"{name}.")
                    }
                    return kind(
                        **{
                            key: one.astype(np.float32) if one.dtype.kind == "f" else one
                            for key, one in named.items()
                        }
                    )

                knows = any(key.startswith("consensus.") for key in file.keys())  # noqa: SIM118
                trust = cls(
                    familiarity=part("familiarity", Familiarity),
                    sight=part("sight", Sight),
                    word=file.get_tensor("word"),
                    caption=file.get_tensor("caption"),
                    weights=weights,
                    consensus=part("consensus", Consensus) if knows else None,
                )
                _check(trust)
                return trust
        except (
            SafetensorError,
            OSError,
            LookupError,
            AttributeError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise CheckpointFormatError(
                f"{path} is damaged or holds something else ({error}): remove it, or write it "
                "again with `captioner trust`"
            ) from error


def _check(trust: Trust) -> None:
    """Raise ValueError if the parts of a file do not fit together."""
    sight, cloud = trust.sight, trust.familiarity
    features, kinds = sight.slopes.shape
    shapes = [
        (trust.word, (4,)),
        (trust.caption, (2,)),
        (sight.shares, (kinds,)),
        (sight.middle, (features,)),
        (cloud.mean, (features,)),
        (cloud.directions, (features, *cloud.widths.shape)),
        (cloud.rest.reshape(-1), (1,)),
        (cloud.quantiles, (cloud.quantiles.size,)),
        (cloud.spreads, (cloud.quantiles.size,)),
        (sight.kinds, (sight.kinds.size,)),
    ]
    if sight.kinds.dtype.kind != "i" or any(part.shape != shape for part, shape in shapes):
        raise ValueError("its parts do not fit together")
    if not -1 <= sight.kinds.min() <= sight.kinds.max() < kinds:
        raise ValueError("its words are of unknown kinds")


def _sigmoid(values: Any) -> Any:
    return (1 + np.tanh(values / 2)) / 2  # so written, nothing overflows


def word_clues(
    sight: Sight, seen: NDArray[Any], kinds: NDArray[Any], logs: NDArray[Any]
) -> NDArray[Any]:
    """Gather what tells whether words are right.

    Args:
        sight: of the model.
        seen: (C,), what it says of the photo.
        kinds: (T,), of the words; the numbers of words that name nothing mean nothing.
        logs: (T,), the log-probabilities with which they were said.

    Returns:
        (T, 3), logarithms: of the share of people who would say the word of this photo, of the
        share who say it of any, and of its probability.
    """
    shares = np.stack([seen, sight.shares])[:, kinds].clip(min=_LEAST)
    return np.concatenate([np.log(shares), logs[np.newaxis]]).T


def trust_file(checkpoint: str | os.PathLike[str]) -> Path:
    """Name the file of what is known of a checkpoint, beside it."""
    path = checkpoint_file(checkpoint)
    # A suffix of another kind may be half of a version: model-1.5 is not model-1.6.
    return path.with_name(path.name.removesuffix(".safetensors") + ".trust.safetensors")


def digest_weights(checkpoint: Path) -> str:
    """Digest what decides a checkpoint's words: its weights as they lie in the file, and settings.

    Its name and scores are not in it. 28 MB of weights take 20 ms.
    """
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
