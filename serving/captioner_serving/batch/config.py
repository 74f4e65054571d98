"""The settings of a batch run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Interval

from captioner.errors import ConfigError
from captioner.generation.config import GenerationConfig
from captioner.shared.settings import Positive, Share, check_bounds
from captioner_serving.batch.wording import Existing, Wording

Sidecar = Literal["txt", "caption", "json", "xmp"]

# RFC 3066; x-default is not a language.
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
# Fields that may differ between runs with one output, and fields that `generation` contains.
_FREE = ("retry_errors", "restart", "batch_size", "workers", "max_pixels")
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
    # Outputs
    # Records with a lower score or less trust get "review": true, and no sidecar.
    min_score: Annotated[float, Interval(le=0)] | None = None
    minimum_trust: Share | None = None
    sidecar: Sidecar | None = None
    embed: bool = False  # copy the XMP sidecars into the JPEG files, with exiftool
    existing: Existing = "skip"  # how existing texts of sidecars and photos are treated
    language: str = "en"  # of the captions, for XMP
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
        if self.embed and self.sidecar != "xmp":
            yield "embed requires sidecar xmp"
        if self.existing != "skip" and self.sidecar is None:
            yield f"existing is {self.existing!r}; it requires sidecar"
        if self.existing == "append" and self.sidecar == "json":
            yield "existing is 'append'; use skip or overwrite for json sidecars"
        if _LANGUAGE.fullmatch(self.language) is None:
            yield f"language is {self.language!r}; use a language tag such as en or pt-BR"

    def generation_config(self, generation: GenerationConfig) -> GenerationConfig:
        """Return a checkpoint's generation settings with the changes of this batch."""
        return generation.for_request(
            beam_size=self.beam_size, captions=self.captions, style=self.style
        )

    def settings(self, generation: GenerationConfig) -> dict[str, Any]:
        """Return the settings that all runs with one output must share.

        generation: the result of `generation_config`.
        """
        settings = asdict(self)
        for name in (*_FREE, *_GENERATION):
            del settings[name]
        return {**asdict(generation), **settings}
