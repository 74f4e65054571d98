"""How sentences are made from scores of words: the settings of generation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from numbers import Integral
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Interval

from captioner.errors import ConfigError
from captioner.vision.bounds import EXPLAINED, Positive, check_bounds

__all__ = ["MAX_BEAM_SIZE", "GenerationConfig", "Length"]

MAX_BEAM_SIZE = 20
"""Of every front end: a wider beam finds no better sentences, and takes time and memory."""

_MOST_DRAWN = 10_000  # captions of an image; more would take all memory

Length = Annotated[int, Interval(ge=1, le=256)]
"""Words of a caption at most: a model that never says <end> is stopped there."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How sentences are made from scores of words.

    Raises ConfigError: a value cannot work; the detail names every such field.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = EXPLAINED

    beam_size: Annotated[int, Interval(ge=1, le=MAX_BEAM_SIZE)] = 5
    """Hypotheses; 1 is greedy."""
    captions: Positive = 1
    """How many of the best are returned."""
    length_penalty: Annotated[float, Interval(ge=0, lt=10)] = 0.5
    """a in sum / length^a: 0 prefers short captions, 1 takes the mean."""
    consensus: bool = True
    """Of the sentences that a beam has finished those come first that people would most agree with,
    where the checkpoint knows that (captioner.trust.consensus). False: the likeliest."""
    no_repeat_ngram: Annotated[int, Ge(0)] = 2
    """No n words stand twice in this order, and no word twice in a row ("a hat hat"); 0 allows
    both. With a vocabulary of characters, such as Chinese ones, the last may stand twice in a
    row."""
    different_around: str = "and"
    """No word stands on both sides of this one, as in "a red and red car": the attention has looked
    at one thing twice. A word that the vocabulary does not have, or "", allows it."""
    minimum_length: Annotated[int, Ge(0)] = 1
    """Words, before <end> may come."""
    maximum_length: Length = 24
    """Words; then <end> must come."""
    sample: bool = False
    """Draw words at random instead of searching for the likeliest."""
    temperature: Annotated[float, Gt(0)] = 1.0
    """Below 1 sharpens, above 1 flattens what is drawn."""
    top_k: Annotated[int, Ge(0)] = 0
    """Draw from the k likeliest words only; 0: from all."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Draw from the likeliest words that together have this probability."""
    seed: Annotated[int, Interval(ge=-(2**63), le=2**64 - 1)] | None = None
    """Of sampling, as torch takes it; None draws anew every time."""
    style: str = ""
    """Which of the styles that a model has learned, such as those of two data sets; "": the
    first."""

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    @property
    def searches(self) -> bool:
        """Whether a beam searches, in place of greedy words or drawn ones."""
        return self.beam_size > 1 and not self.sample

    @property
    def chooses(self) -> bool:
        """Whether consensus chooses among its sentences."""
        return self.searches and self.consensus

    def _contradictions(self) -> Iterator[str]:
        if self.sample and self.captions > _MOST_DRAWN:
            yield f"captions {self.captions} is out of range: it is at most {_MOST_DRAWN}"
        if not self.sample and self.captions > self.beam_size:
            remedy = f"ask for {MAX_BEAM_SIZE} or fewer"
            if self.captions <= MAX_BEAM_SIZE:
                remedy = f"set beam_size {self.captions} too, or ask for fewer"
            yield (
                f"captions {self.captions} is out of range; it is at most beam_size, "
                f"{self.beam_size}: {remedy}"
            )
        if self.minimum_length > self.maximum_length:
            yield (
                f"minimum_length {self.minimum_length} is out of range: it is at most "
                f"maximum_length, {self.maximum_length}"
            )

    def changed(self, **settings: Any) -> GenerationConfig:
        """These settings with some of them changed; a beam becomes as wide as `captions` needs.

        Raises ConfigError: there is no such setting, or it is out of range.
        """
        known = [field.name for field in fields(self)]
        for name in settings:
            if name not in known:
                near = get_close_matches(name, known, 1)
                meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise ConfigError(f"there is no setting {name!r}: {meant}")
        settings = {
            # Integers of numpy are no int.
            name: value
            if isinstance(value, bool) or not isinstance(value, Integral)
            else int(value)
            for name, value in settings.items()
        }
        captions = settings.get("captions")
        if isinstance(captions, int) and "beam_size" not in settings:
            settings["beam_size"] = max(self.beam_size, min(captions, MAX_BEAM_SIZE))
        return replace(self, **settings)

    def asked(
        self, *, beam_size: int | None = None, captions: int = 1, style: str | None = None
    ) -> GenerationConfig:
        """These settings with what somebody asked for: one rule for every front end.

        Without a beam size it is these settings' own, made as wide as `captions` needs; without a
        style, or with "", their own too. Whether there is such a style, the model knows.

        Raises ConfigError: one of them is out of range.
        """
        if self.sample and captions > MAX_BEAM_SIZE:
            raise ConfigError(f"captions {captions} is out of range; it is at most {MAX_BEAM_SIZE}")
        if beam_size is None:
            beam_size = max(self.beam_size, min(captions, MAX_BEAM_SIZE))
        return replace(self, beam_size=beam_size, captions=captions, style=style or self.style)
