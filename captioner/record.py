"""The schema of a caption's record, to validate records from elsewhere.

Its limits are higher than any value in a record of Captioner.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from captioner.errors import ConfigError

_Share = Annotated[float, Field(ge=0, le=1)]
_Side = Annotated[int, Field(ge=1, le=64)]
_Far = Annotated[float, Field(ge=-1e3, le=1e3)]  # edges of a box, effects in nats
_SUM = 0.02  # tolerance for rounding


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class AttentionRecord(_Part):
    """A word's attention: the weights in row order, and the box of the grid in the photo."""

    rows: _Side
    columns: _Side
    box: Annotated[list[_Far], Field(min_length=4, max_length=4)]
    weights: list[_Share]
    heads: Annotated[list[list[_Share]], Field(min_length=1, max_length=64)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        left, top, right, bottom = self.box
        if not (left < right and top < bottom):
            raise ValueError("the box is empty")
        for weights in (self.weights, *(self.heads or ())):
            if len(weights) != self.rows * self.columns:
                raise ValueError(f"there are not {self.rows} x {self.columns} weights")
            if abs(sum(weights) - 1) > _SUM:
                raise ValueError("the weights do not sum to 1")
        return self


class WordRecord(_Part):
    """A word of a sentence."""

    word: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    probability: _Share
    trust: _Share | None = None
    gate: _Share | None = None
    effect: _Far | None = None
    doubtful: bool | None = None
    attention: AttentionRecord | None = None


class SentenceRecord(_Part):
    """A sentence; alternatives may have no words."""

    caption: Annotated[str, StringConstraints(max_length=20_000)]
    score: Annotated[float, Field(ge=-1e6, le=1e6)]
    trust: _Share | None = None
    words: Annotated[list[WordRecord], Field(max_length=256)] | None = None


class ModelRecord(_Part):
    """The model that wrote a caption; records of version 0.1 have no dtype."""

    name: str
    version: str
    dtype: str | None = None


class CaptionRecord(SentenceRecord):
    """The best sentence of a photo, and its alternatives."""

    words: Annotated[list[WordRecord], Field(max_length=256)]
    alternatives: Annotated[list[SentenceRecord], Field(max_length=10_000)] = []
    image: str | None = None
    model: ModelRecord = ModelRecord(name="unknown", version="unknown")
    familiarity: _Share | None = None
    style: str | None = None


def read_record(record: object) -> CaptionRecord:
    """Validate a record of this version or an earlier one.

    Raises ConfigError: the argument is not a record, or a value is out of range.
    """
    try:
        return CaptionRecord.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "record"
        raise ConfigError(f"the record cannot be used ({place}: {first['msg']})") from error
