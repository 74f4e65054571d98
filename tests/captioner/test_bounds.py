"""Bounds of settings: every one that is broken is named, with what is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from annotated_types import Gt, Interval

from captioner import ConfigError, GenerationConfig
from captioner.vision.bounds import check_bounds


@dataclass(frozen=True, kw_only=True)
class Config:
    size: Annotated[int, Interval(ge=1, le=9)] = 3
    rate: Annotated[float, Gt(0)] | None = None
    mode: Literal["pad", "crop"] = "pad"
    on: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        check_bounds(self)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "size 0 is out of range: it should be greater than or equal to 1"),
        ({"size": True}, "size True is out of range"),
        ({"rate": math.nan}, "rate nan is out of range: it should be a finite number"),
        ({"mode": "stretch"}, "mode 'stretch' is out of range: it should be 'pad' or 'crop'"),
        ({"on": 1}, "on 1 is out of range: it should be a valid boolean"),
    ],
)
def test_a_value_out_of_bounds_is_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**fields)  # type: ignore[arg-type]
    assert Config(size=9, rate=1, mode="crop") == Config(size=9, rate=1.0, mode="crop")


def test_every_field_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        GenerationConfig(beam_size=21, top_p=0, temperature=math.nan, seed=10**400)
    assert all(name in str(caught.value) for name in ("beam_size", "top_p", "temperature", "seed"))
    with pytest.raises(ConfigError, match="minimum_length 9 is out of range: it is at most"):
        GenerationConfig(minimum_length=9, maximum_length=8)
