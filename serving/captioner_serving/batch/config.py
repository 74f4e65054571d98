"""The settings of a batch run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from captioner.errors import ConfigError
from captioner.generation.config import GenerationConfig
from captioner.vision.image import MAX_PIXELS
from captioner_serving.batch.wording import Existing, Wording

__all__ = ["BatchConfig", "Existing", "Maps", "Shard", "Sidecar"]

_MOST_WORKERS = 1024
# RFC 3066; x-default is not a language.
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")

Sidecar = Literal["txt", "caption", "json", "xmp"]
Maps = Literal["overlay", "sheet"]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of several parts of the photos: the same part on every machine and in every order."""

    index: int  # from 1
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ConfigError(f"shard {self.index}/{self.count}: the shards of N are 1/N to N/N")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "I/N"."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal()):
            raise ConfigError(f"shard {text!r}: write I/N, such as 1/4")
        return cls(index=int(index), count=int(count))

    def __contains__(self, name_digest: bytes) -> bool:
        return int.from_bytes(name_digest[:8], "big") % self.count == self.index - 1


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How a batch is captioned and what is written; every default is what most runs want.

    Raises:
        ConfigError: values that cannot work, all of them named.

    """

    # What is said
    beam_size: int | None = None  # None: the checkpoint's own
    captions: int = 1  # the N best of each photo; the others stand in the alternatives
    style: str | None = None  # of a model that has several; None: the checkpoint's own
    attention: bool = False  # each word's weights in the records: five times the size
    check_attention: bool = False  # each word's measured effect in the records; slower
    wording: Wording = field(
        default_factory=Wording
    )  # what is done to a caption before it is written
    # Where it goes
    min_score: float | None = None  # records below go to `review` instead of the output
    review: str | None = None
    sidecar: Sidecar | None = None  # a file beside each photo
    existing: Existing = "skip"  # what becomes of the text of a sidecar that is there already
    language: str = "en"  # of the captions, for XMP
    maps: Maps | None = None  # pictures of the attention, into `maps_to`
    maps_to: str | None = None
    head: int | None = None  # whose attention the maps show, from 1; None: the mean of all
    keep_formulas: bool = False  # CSV cells that begin with = + - @ stay as they are
    # Which photos
    shard: Shard | None = None
    retry_errors: bool = False  # the photos that failed before are tried again
    restart: bool = False  # forget what an earlier run with this output did
    # How fast
    batch_size: int | None = None  # None: what suits the device; halved when memory runs out
    workers: int | None = None  # processes that decode; None: one a core
    max_pixels: int = MAX_PIXELS  # larger photos are refused

    def __post_init__(self) -> None:
        if problems := [text for text, wrong in self._problems().items() if wrong]:
            raise ConfigError("; ".join(problems))

    def _problems(self) -> Mapping[str, bool]:
        unsure = self.min_score
        known = (
            ("sidecar", self.sidecar, get_args(Sidecar)),
            ("existing", self.existing, get_args(Existing)),
            ("maps", self.maps, get_args(Maps)),
        )
        counts = (("batch_size", self.batch_size), ("workers", self.workers))
        return {
            **{
                f"{name} {value!r} is not one of {', '.join(values)}": value not in values
                for name, value, values in known
                if value is not None
            },
            **{f"{name} {n} is below 1": n is not None and n < 1 for name, n in counts},
            f"workers {self.workers} is above {_MOST_WORKERS}": (
                (self.workers or 0) > _MOST_WORKERS
            ),
            f"review {self.review!r} does not end in .jsonl": (
                self.review is not None and not self.review.endswith(".jsonl")
            ),
            f"max_pixels {self.max_pixels} is below 1": self.max_pixels < 1,
            "min_score and review go together: below the one, a record goes to the other": (
                (unsure is None) != (self.review is None)
            ),
            f"min_score {unsure} is not a log-probability, which is 0 or less": (
                unsure is not None and not (math.isfinite(unsure) and unsure <= 0)
            ),
            "maps and maps_to go together: which pictures, and their folder": (
                (self.maps is None) != (self.maps_to is None)
            ),
            f"head {self.head} is for the pictures of maps: it needs maps": (
                self.head is not None and self.maps is None
            ),
            f"existing {self.existing!r} is about sidecars: it needs sidecar": (
                self.existing != "skip" and self.sidecar is None
            ),
            "existing prepend and append need a sidecar of text: json has a record": (
                self.existing in ("prepend", "append") and self.sidecar == "json"
            ),
            f"language {self.language!r} is not a language tag such as en or pt-BR": (
                _LANGUAGE.fullmatch(self.language) is None
            ),
        }

    def asked_of(self, generation: GenerationConfig) -> GenerationConfig:
        """What this batch makes of a checkpoint's own settings.

        Raises:
            ConfigError: one is out of range.

        """
        return generation.asked(beam_size=self.beam_size, captions=self.captions, style=self.style)

    def settings(self, generation: GenerationConfig, review: str | None) -> dict[str, Any]:
        """What two runs must share to write one output, beside the model.

        Args:
            generation: what is asked of the model.
            review: as seen from the output.

        """
        free = {
            "retry_errors",
            "restart",
            "batch_size",
            "workers",
            "max_pixels",
            "beam_size",  # these three are in `generation`
            "captions",
            "style",
            "keep_formulas",
        }
        own = {key: value for key, value in asdict(self).items() if key not in free}
        return {**asdict(generation), **own, "review": review}
