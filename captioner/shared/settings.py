"""Bounds of settings, written once in the annotation of a field.

    size: Annotated[int, Ge(1)] = 224

pydantic checks the annotation when a recipe is loaded. `check_bounds` checks it when a
configuration is made in Python, from options, a form or a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import numpy as np
from annotated_types import Ge, Gt, Interval

from captioner.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Positive = Annotated[int, Ge(1)]
Width = Annotated[int, Interval(ge=1, le=65_536)]  # of a layer
PositiveFloat = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
Fraction = Annotated[float, Interval(ge=0, lt=1)]

_RANGES = ("greater_than", "less_than", "finite", "too_")  # pydantic's errors about a range

EXPLAINED = {"extra": "forbid", "use_attribute_docstrings": True}
"""`__pydantic_config__` of configurations in recipes: the docstring of a field is printed by
`captioner train --fields`."""


@dataclass(frozen=True)
class OneOf:
    """The bound of a name: it must be in a collection, which may grow later."""

    names: Collection[str]

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema with the names as choices."""
        return {**handler(schema), "enum": [*self.names]}

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, name: str) -> str:
        if name not in self.names:
            raise ValueError(f"use {', '.join(self.names)}")
        return name


def check_bounds(config: Any, *, also: Iterator[str] | None = None) -> None:
    """Raise ConfigError if values are outside their bounds; the message names each with its bound.

    numpy's numbers become those of Python.

    Args:
        config: a dataclass.
        also: contradictions between fields; used only if every field is valid.
    """
    from pydantic import ValidationError

    problems = []
    for name, field in _fields(config.__class__).items():
        value = getattr(config, name)
        if isinstance(value, np.generic):  # not an int for pydantic, and not for JSON
            object.__setattr__(config, name, value := value.item())
        try:
            # JSON and YAML have lists instead of tuples.
            field.validate_python(tuple(value) if isinstance(value, list) else value)
        except ValidationError as error:
            wanted = [item["msg"].removeprefix("Value error, ") for item in error.errors()]
            allowed = " or ".join(dict.fromkeys(wanted)).replace("Input should", "it should")
            is_number = any(item["type"].startswith(_RANGES) for item in error.errors())
            fault = "is out of range" if is_number else "is invalid"
            problems.append(f"{name} {repr(value)[:200]} {fault}: {allowed}")
    if problems := problems or list(also or ()):
        raise ConfigError("; ".join(problems))


@cache
def _fields(kind: type) -> dict[str, TypeAdapter[Any]]:
    # Imported here, because processes that only decode photos check no settings.
    from pydantic import ConfigDict, TypeAdapter

    hints = get_type_hints(kind, include_extras=True)
    strict = ConfigDict(strict=True, allow_inf_nan=False)
    # A field that is a dataclass has checked itself.
    bare = (field.name for field in fields(kind) if not is_dataclass(hints[field.name]))
    return {name: TypeAdapter(hints[name], config=strict) for name in bare}
