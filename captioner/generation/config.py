"""The settings of generation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from numbers import Integral
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Interval

from captioner.errors import ConfigError
from captioner.shared.settings import EXPLAINED, Positive, check_bounds

MAX_BEAM_SIZE = 20
"""The widest beam; wider ones cost time and memory and find no better sentences."""

_MOST_SAMPLES = 10_000  # captions of an image, limited by memory

Length = Annotated[int, Interval(ge=1, le=256)]
"""The maximum number of words of a caption."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """The settings of generation.

    Raises ConfigError: values are out of range or contradict each other; the message names each.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = EXPLAINED

    beam_size: Annotated[int, Interval(ge=1, le=MAX_BEAM_SIZE)] = 5
    """Hypotheses kept at each step; 1 is greedy search."""
    captions: Positive = 1
    """The number of captions returned."""
    length_penalty: Annotated[float, Interval(ge=0, lt=10)] = 0.5
    """The exponent a in score = sum / length^a: 0 prefers short captions, 1 ranks by the mean."""
    consensus: bool = True
    """Rank the sentences of a beam by expected CIDEr, if the checkpoint has the
    statistics (captioner.trust.consensus). False: by probability."""
    no_repeat_ngram: Annotated[int, Ge(0)] = 2
    """The length n of n-grams that must not occur twice; 0: no limit. Above 0, no word occurs twice
    in a row either, except with a vocabulary of characters."""
    no_repeat_around: str = "and"
    """A word that must not stand between two equal words ("a red and red car"); "": none."""
    minimum_length: Annotated[int, Ge(0)] = 1
    """The number of words after which <end> is allowed."""
    maximum_length: Length = 24
    """The number of words after which the caption ends."""
    sample: bool = False
    """Whether words are sampled at random, instead of searched."""
    temperature: Annotated[float, Gt(0)] = 1.0
    """Temperature of sampling: below 1 sharpens the distribution, above 1 flattens it."""
    top_k: Annotated[int, Ge(0)] = 0
    """Sample from the k most probable words; 0: from all."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Sample from the most probable words that together have this probability."""
    seed: Annotated[int, Interval(ge=-(2**63), le=2**64 - 1)] | None = None
    """Seed of sampling; None: different captions every time."""
    style: str = ""
    """The style of the captions, if the model was trained on several; "": the default style."""

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    @property
    def uses_beam(self) -> bool:
        """Whether this is a beam search, not greedy search or sampling."""
        return self.beam_size > 1 and not self.sample

    @property
    def uses_consensus(self) -> bool:
        """Whether the sentences of a beam are ranked by expected CIDEr."""
        return self.uses_beam and self.consensus

    def _contradictions(self) -> Iterator[str]:
        if self.sample and self.captions > _MOST_SAMPLES:
            yield f"captions {self.captions} is out of range: it is at most {_MOST_SAMPLES}"
        if not self.sample and self.captions > self.beam_size:
            remedy = f"ask for {MAX_BEAM_SIZE} or fewer"
            if self.captions <= MAX_BEAM_SIZE:
                remedy = f"set beam_size {self.captions} too, or ask for fewer"
            most = f"it is at most beam_size, {self.beam_size}"
            yield f"captions {self.captions} is out of range; {most}: {remedy}"
        if self.minimum_length > self.maximum_length:
            most = f"it is at most maximum_length, {self.maximum_length}"
            yield f"minimum_length {self.minimum_length} is out of range: {most}"

    def changed(self, **settings: Any) -> GenerationConfig:
        """Return a copy with other settings; beam_size is raised to `captions` if necessary.

        Raises ConfigError: a setting does not exist, or is out of range.
        """
        names = [field.name for field in fields(self)]
        for name in settings:
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}"
                raise ConfigError(f"there is no setting {name!r}: {hint}")
        captions = settings.get("captions")
        if isinstance(captions, Integral) and "beam_size" not in settings:
            settings["beam_size"] = max(self.beam_size, min(captions, MAX_BEAM_SIZE))
        return replace(self, **settings)

    def for_request(
        self, *, beam_size: int | None = None, captions: int = 1, style: str | None = None
    ) -> GenerationConfig:
        """Return a copy with the options of a request; all front ends use this rule.

        Args:
            beam_size: None: the beam size of this object, raised to `captions` if necessary.
            captions: the number of captions.
            style: None or "": the style of this object. The style is not checked here.

        Raises ConfigError: an option is out of range.
        """
        if self.sample and captions > MAX_BEAM_SIZE:
            raise ConfigError(f"captions {captions} is out of range; it is at most {MAX_BEAM_SIZE}")
        width = {} if beam_size is None else {"beam_size": beam_size}
        return self.changed(captions=captions, style=style or self.style, **width)
