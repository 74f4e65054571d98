"""Bounds of settings: written once, in the annotation of a field, and read wherever one is set.

    size: Annotated[int, Ge(1)] = 224

pydantic reads such an annotation when a recipe is loaded; `check_bounds` reads it when a
configuration is made in Python, from flags or from a form.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Interval, Le, Lt

from captioner.errors import ConfigError

__all__ = [
    "Fraction",
    "NotNegative",
    "OneOf",
    "Positive",
    "PositiveFloat",
    "Share",
    "Width",
    "check_bounds",
    "problems_of",
]

Positive = Annotated[int, Ge(1)]
Width = Annotated[int, Interval(ge=1, le=65_536)]  # of a layer; no file holds a wider one
PositiveFloat = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
Fraction = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(frozen=True)
class OneOf:
    """The bound of a name: it is in this table, to which others may add."""

    names: Collection[str]

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Give the names as choices, for a list of all fields of a recipe."""
        return {**handler(schema), "enum": [*self.names]}


def check_bounds(config: Any, *, also: Iterator[str] | None = None) -> None:
    """Refuse a configuration whose values are outside their annotations.

    Args:
        config: a dataclass.
        also: problems that lie between fields; read only where every field is sound by itself.

    Raises:
        ConfigError: the detail names every such field, its value and what is allowed.

    """
    problems = list(problems_of(config)) or list(also or ())
    if problems:
        raise ConfigError("; ".join(problems))


def problems_of(config: Any) -> Iterator[str]:
    """Name each number, switch, choice or tuple of numbers that its annotation does not allow."""
    kind: Any = type(config)
    for name, allowed in _annotations(kind).items():
        value = getattr(config, name)
        if not any(_fits(value, one) for one in allowed):
            wanted = " or ".join(text for one in allowed if (text := _words(one)))
            yield f"{name} {value!r} is out of range: use {wanted}"


@cache
def _annotations(kind: type) -> dict[str, tuple[Any, ...]]:
    """Give the alternatives of each field that this module can judge."""
    hints = get_type_hints(kind, include_extras=True)
    found = {field.name: _alternatives(hints[field.name]) for field in fields(kind)}
    return {name: each for name, each in found.items() if all(map(_judged, each))}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _judged(hint: Any) -> bool:
    base, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if any(isinstance(mark, OneOf) for mark in marks):
        return True
    if get_origin(base) is tuple:
        return Ellipsis not in get_args(base) and all(map(_judged, get_args(base)))
    return base in (int, float, bool, NoneType) or get_origin(base) is Literal


def _fits(value: Any, hint: Any) -> bool:
    base, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(base) is Literal:
        return value in get_args(base)
    if base is str:
        return isinstance(value, str) and all(value in mark.names for mark in marks)
    if get_origin(base) is tuple:
        # JSON and YAML have lists for tuples.
        return (
            isinstance(value, tuple | list)
            and len(value) == len(get_args(base))
            and all(map(_fits, value, get_args(base)))
        )
    if base in (bool, NoneType):
        return isinstance(value, base)
    kinds = (int,) if base is int else (int, float)
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return all(_inside(value, bound) for mark in marks for bound in _simple(mark))


def _simple(mark: Any) -> Iterator[Ge | Gt | Le | Lt]:
    """Take an Interval apart; leave out what is not a bound."""
    for bound in mark if isinstance(mark, Interval) else (mark,):
        if isinstance(bound, Ge | Gt | Le | Lt):
            yield bound


def _inside(value: Any, bound: Ge | Gt | Le | Lt) -> bool:
    match bound:
        case Ge(ge=limit):
            return bool(value >= limit)
        case Gt(gt=limit):
            return bool(value > limit)
        case Le(le=limit):
            return bool(value <= limit)
        case Lt(lt=limit):
            return bool(value < limit)


def _words(hint: Any) -> str:
    """Say what an alternative allows: "a whole number, at least 1"."""
    base, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(base) is Literal:
        return ", ".join(map(str, get_args(base)))
    if base is str:
        return ", ".join(name for mark in marks for name in mark.names)
    if get_origin(base) is tuple:
        return f"{len(get_args(base))} values, each {_words(get_args(base)[0])}"
    name = {int: "a whole number", float: "a number", bool: "true or false"}.get(base, "null")
    limits = [_limit(bound) for mark in marks for bound in _simple(mark)]
    match marks:
        case [Interval(gt=None, ge=low, lt=None, le=high)] if None not in (low, high):
            limits = [f"{low} to {high}"]
    return f"{name}, {' and '.join(limits)}" if limits else name


def _limit(bound: Ge | Gt | Le | Lt) -> str:
    match bound:
        case Ge(ge=limit):
            return f"at least {limit}"
        case Gt(gt=limit):
            return f"above {limit}"
        case Le(le=limit):
            return f"at most {limit}"
        case Lt(lt=limit):
            return f"below {limit}"
