"""The settings of a batch run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Interval

from captioner.errors import ConfigError
from captioner.generation.config import GenerationConfig
from captioner.vision.bounds import Positive, Share, check_bounds
from captioner.vision.image import MAX_PIXELS
from captioner_serving.batch.wording import Existing, Wording

__all__ = ["BatchConfig", "Existing", "Maps", "Shard", "Sidecar"]

Sidecar = Literal["txt", "caption", "json", "xmp"]
Maps = Literal["overlay", "sheet"]

# RFC 3066; x-default is not a language.
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
# What may change between two runs with one output, and what `generation` has.
_FREE = ("retry_errors", "restart", "batch_size", "workers", "max_pixels", "backup")
_GENERATION = ("beam_size", "captions", "style")


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

    Raises ConfigError: a value cannot work; the detail names every such field.
    """

    # What is said
    beam_size: int | None = None  # None: the checkpoint's own
    captions: int = 1  # the N best of each photo; the others stand in the alternatives
    style: str | None = None  # of a model that has several; None: the checkpoint's own
    attention: bool = False  # each word's weights in the records: five times the size
    check_attention: bool = False  # each word's measured effect in the records; slower
    keywords: Share | None = None  # the least trust of a keyword; None: no keywords
    wording: Wording = field(default_factory=Wording)  # of captions before they are written
    plain: bool = False  # no capital and no full stop in XMP and CSV
    # Where it goes
    # Records below this log-probability go to `review` instead of the output.
    min_score: Annotated[float, Interval(le=0)] | None = None
    minimum_trust: Share | None = None  # and so do captions with less trust
    review: str | None = None
    sidecar: Sidecar | None = None  # a file beside each photo
    embed: bool = False  # texts in the JPEG files themselves, by exiftool
    backup: bool = True  # keep the unchanged JPEG file as FILE_original
    existing: Existing = "skip"  # what becomes of the text of a sidecar or photo
    language: str = "en"  # of the captions, for XMP
    maps: Maps | None = None  # pictures of the attention, into `maps_to`
    maps_to: str | None = None
    head: int | None = None  # whose attention the maps show, from 1; None: the mean of all
    # Which photos
    shard: Shard | None = None
    retry_errors: bool = False  # the photos that failed before are tried again
    restart: bool = False  # forget what an earlier run with this output did
    # How fast
    batch_size: Positive | None = None  # None: what suits the device; halved when memory runs out
    # Processes that decode; None: one a core.
    workers: Annotated[int, Interval(ge=1, le=1024)] | None = None
    max_pixels: Positive = MAX_PIXELS  # larger photos are refused

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if self.review is not None and not self.review.endswith(".jsonl"):
            yield f"review {self.review!r} does not end in .jsonl"
        if (self.min_score is None and self.minimum_trust is None) != (self.review is None):
            yield (
                "min_score and review go together, or minimum_trust and review: below the one, a "
                "record goes to the other"
            )
        if (self.maps is None) != (self.maps_to is None):
            yield "maps and maps_to go together: which pictures, and their folder"
        if self.head is not None and self.maps is None:
            yield f"head {self.head} is for the pictures of maps: it needs maps"
        if self.existing != "skip" and self.sidecar is None and not self.embed:
            yield f"existing {self.existing!r} is for sidecar and embed: it needs sidecar or embed"
        if self.existing in ("prepend", "append") and self.sidecar == "json":
            yield "existing prepend and append need a sidecar of text: json has a record"
        if not self.backup and not self.embed:
            yield "--no-backup is about --embed: it needs --embed"
        if _LANGUAGE.fullmatch(self.language) is None:
            yield f"language {self.language!r} is not a language tag such as en or pt-BR"

    def asked_of(self, generation: GenerationConfig) -> GenerationConfig:
        """What this batch makes of a checkpoint's own settings."""
        return generation.for_request(
            beam_size=self.beam_size, captions=self.captions, style=self.style
        )

    def settings(self, generation: GenerationConfig, review: str | None) -> dict[str, Any]:
        """What two runs must share to write one output, beside the model.

        Args:
            generation: what is asked of the model.
            review: as seen from the output.
        """
        own = asdict(self)
        for name in (*_FREE, *_GENERATION):
            del own[name]
        return {**asdict(generation), **own, "review": review}
