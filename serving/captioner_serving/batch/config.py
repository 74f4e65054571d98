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
from captioner_serving.batch.wording import Existing, Wording

Sidecar = Literal["txt", "caption", "json", "xmp"]
Maps = Literal["overlay", "sheet"]

# RFC 3066; x-default is not a language.
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
# Fields that may differ between runs with one output, and fields that `generation` contains.
_FREE = ("retry_errors", "restart", "batch_size", "workers", "max_pixels", "backup")
_GENERATION = ("beam_size", "captions", "style")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of `count` parts of the photos; the digest of a photo's name selects the part."""

    index: int  # from 1
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ConfigError(f"shard is {self.index}/{self.count}; in I/N, I must be from 1 to N")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "I/N"."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal()):
            raise ConfigError(f"shard is {text!r}; write I/N, such as 1/4")
        return cls(index=int(index), count=int(count))

    def __contains__(self, name_digest: bytes) -> bool:
        return int.from_bytes(name_digest[:8], "big") % self.count == self.index - 1


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Settings of a batch run.

    Raises ConfigError: fields are invalid; the detail names all of them.
    """

    # Captions
    beam_size: int | None = None  # None: the checkpoint's
    captions: int = 1  # the N best; all but the first are `alternatives`
    style: str | None = None  # None: the checkpoint's
    attention: bool = False  # add each word's attention weights to the records
    check_attention: bool = False  # add each word's effect to the records
    keywords: Share | None = None  # the minimum trust of a keyword; None: no keywords
    wording: Wording = field(default_factory=Wording)
    plain: bool = False  # no capital letter or full stop in XMP, CSV and embedded texts
    # Outputs
    min_score: Annotated[float, Interval(le=0)] | None = None  # lower scores go to `review`
    minimum_trust: Share | None = None  # captions with less trust go to `review`
    review: str | None = None
    sidecar: Sidecar | None = None
    embed: bool = False  # write texts into the JPEG files, with exiftool
    backup: bool = True  # keep the unchanged JPEG file as FILE_original
    existing: Existing = "skip"  # how existing texts of sidecars and photos are treated
    language: str = "en"  # of the captions, for XMP
    maps: Maps | None = None  # pictures of the attention, written to `maps_to`
    maps_to: str | None = None
    head: int | None = None  # attention head of the maps, from 1; None: the mean of all
    # Photos
    shard: Shard | None = None
    retry_errors: bool = False
    restart: bool = False  # delete the results of an earlier run
    # Speed
    # None: depends on the device; halved when memory runs out
    batch_size: Positive | None = None
    workers: Annotated[int, Interval(ge=1, le=1024)] | None = None  # None: one per core
    max_pixels: Positive | None = None  # larger photos are refused; None: the captioner's limit

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if self.review is not None and not self.review.endswith(".jsonl"):
            yield f"review is {self.review!r}; it must end in .jsonl"
        if (self.min_score is None and self.minimum_trust is None) != (self.review is None):
            yield "review requires min_score or minimum_trust, and vice versa"
        if (self.maps is None) != (self.maps_to is None):
            yield "maps requires maps_to, and vice versa"
        if self.head is not None and self.maps is None:
            yield f"head is {self.head}; it requires maps"
        if self.existing != "skip" and self.sidecar is None and not self.embed:
            yield f"existing is {self.existing!r}; it requires sidecar or embed"
        if self.existing in ("prepend", "append") and self.sidecar == "json":
            yield f"existing is {self.existing!r}; use skip or overwrite for json sidecars"
        if not self.backup and not self.embed:
            yield "--no-backup requires --embed"
        if _LANGUAGE.fullmatch(self.language) is None:
            yield f"language is {self.language!r}; use a language tag such as en or pt-BR"

    def generation_config(self, generation: GenerationConfig) -> GenerationConfig:
        """Return a checkpoint's generation settings with the changes of this batch."""
        return generation.for_request(
            beam_size=self.beam_size, captions=self.captions, style=self.style
        )

    def settings(self, generation: GenerationConfig, review: str | None) -> dict[str, Any]:
        """Return the settings that all runs with one output must share.

        Args:
            generation: the result of `generation_config`.
            review: the path of the review, relative to the output.
        """
        settings = asdict(self)
        for name in (*_FREE, *_GENERATION):
            del settings[name]
        return {**asdict(generation), **settings, "review": review}
