"""Recipes as files: typed YAML, shipped or one's own, with single fields set anew."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from captioner.errors import ConfigError
from captioner.paths import did_you_mean, expanded, there_is_no
from captioner_training.recipe import Recipe

__all__ = ["load_recipe", "recipe_text", "shipped_recipes"]

_LONGEST = 50_000  # bytes of a file; the longest that is shipped has 3,000
_DEEPEST = 10  # lists and mappings inside each other; a recipe has five
_DIGITS = 40  # of a number
_PLAIN = (":null", ":bool", ":int", ":float")  # what is neither text, list nor mapping
_LOOKS = 4  # at what wrong fields hide: what lacks one, the parts of a stage, a stage, all of it


def shipped_recipes() -> list[str]:
    """The names of the recipes that come with Captioner."""
    folder = files("captioner_training") / "recipes"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if ".yaml" in entry.name)


def load_recipe(name: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read a shipped recipe by its name, or a YAML file, and set single fields anew.

    Args:
        name: "flickr8k", say, or a path that ends in .yaml or .yml.
        overrides: dotted field names and YAML values; stages are counted from 1:
            {"stages.1.epochs": "3"}.

    Raises:
        ConfigError: no such recipe, not YAML, or fields that do not fit: all of them at once.

    """
    values = _read(name)
    problems = [
        problem for key, text in (overrides or {}).items() if (problem := _set(values, key, text))
    ]
    recipe, wrong = _validated(values)
    if wrong:
        problems += dict.fromkeys(_sentence(one) for one in wrong + _hidden(values, wrong))
    if problems or recipe is None:
        raise ConfigError(f"recipe {name} cannot be used:\n  " + "\n  ".join(problems))
    return recipe


def recipe_text(name: str) -> str:
    """Give a shipped recipe, or a file's, as it is written.

    Raises:
        ConfigError: there is no such recipe, or it cannot be read.

    """
    source = _source(name)
    try:
        with source.open("rb") as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise ConfigError(f"recipe {source} is no recipe: it has more than {_LONGEST:,} bytes")
        return text.decode()
    except FileNotFoundError as error:
        raise ConfigError(f"recipe {name} cannot be read: {there_is_no('file', source)}") from error
    except OSError as error:
        raise ConfigError(f"recipe {source} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"recipe {source} is not YAML: {error}") from error


def _source(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return expanded(name)
    shipped = shipped_recipes()
    if name in shipped:
        return Path(str(files("captioner_training") / "recipes" / f"{name}.yaml"))
    file = Path(f"{name}.yaml")
    near = f", did you mean {file}?" if file.is_file() else did_you_mean(name, shipped)
    raise ConfigError(
        f"there is no recipe {name!r}{f'{near} Name' if near else ': name'} a .yaml file, or one "
        f"of {', '.join(shipped)}"
    )


class _Loader(yaml.SafeLoader):
    """YAML that says what JSON could say, since a few lines of more can take the whole memory.

    A date is a text. Of a key that comes twice YAML would take the last without a word.

    Raises:
        YAMLError: it is not YAML, or says more.

    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {  # type: ignore[misc]
        sign: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(_PLAIN)]
        for sign, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read a value as it is written; refuse what a recipe does not need."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        odd = None
        if event.anchor is not None:
            odd = "anchors, aliases and merge keys (&, *, <<) are not read: write the values out"
        elif event.tag is not None:
            odd = f"tags (!) are not read: write the value without {event.tag!a}"
        elif self._depth > _DEEPEST:
            odd = f"more than {_DEEPEST} lists and mappings lie inside each other"
        if odd:
            raise yaml.composer.ComposerError(None, None, odd, event.start_mark)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Make the value; a number that is none, or too long to print, is told with its line."""
        try:
            if node.tag.endswith((":int", ":float")) and len(node.value) > _DIGITS:
                raise ValueError
            return super().construct_object(node, deep=deep)
        except ValueError as error:
            odd = f"{node.value[:_DIGITS]} is no number with up to {_DIGITS} digits"
            raise yaml.constructor.ConstructorError(None, None, odd, node.start_mark) from error

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Read a mapping as it is written. Raises YAMLError where a key comes twice."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise yaml.composer.ComposerError(
                None, None, f"{twice[0]} comes twice", node.start_mark
            )
        return node


def _read(name: str) -> dict[str, Any]:
    source = _source(name)
    try:
        values = yaml.load(recipe_text(name), _Loader)
    except yaml.YAMLError as error:
        mark, said = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f", line {mark.line + 1}," if mark else ""
        said = said or str(error).splitlines()[0]
        raise ConfigError(f"recipe {source}{line} is not YAML as recipes are: {said}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"recipe {source} is not a YAML mapping of fields to values")
    values.setdefault("name", source.stem)
    return values


def _set(values: dict[str, Any], key: str, text: str) -> str | None:
    """Set one dotted field; return what is wrong with it, if anything."""
    *path, last = key.split(".")
    target: Any = values
    for part in path:
        if isinstance(target, list):
            if not part.isdigit() or not 1 <= int(part) <= len(target):
                return f"{key}: there is no {part} among {len(target)}, which are counted from 1"
            target = target[int(part) - 1]
        elif isinstance(target, dict):
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
        else:
            return f"{key}: there is no such field"
    if not isinstance(target, dict):
        return f"{key}: there is no such field"
    kinds = _kinds_of(key)
    if not text and NoneType in kinds:
        return f"{key}: is empty: give a value, or null"
    target[last] = _value(text, kinds)
    return None


def _value(text: str, kinds: set[Any]) -> Any:
    """Read what was typed for a field: a text as it stands, and anything else as YAML."""
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        value = text
    if str in kinds:  # a path may hold " #", or be called 2024
        quoted = text[:1] in ("'", '"') and isinstance(value, str)
        return value if quoted or (value is None and text and NoneType in kinds) else text
    # YAML takes 1e-3 for a text: it wants 1.0e-3.
    return _number(value) if isinstance(value, str) else value


def _kinds_of(key: str) -> set[Any]:
    """Give the types that a field may have, by its dotted name; none where there is no such."""
    kind: Any = Recipe
    hint: Any = None
    for part in key.split("."):
        if not part.isdigit():
            hint = None if kind is None else get_type_hints(kind).get(part)
            kind = _dataclass_in(hint)
    union = isinstance(hint, UnionType) or get_origin(hint) is Union
    return set(get_args(hint)) if union else {hint}


def _number(text: str) -> str | float:
    try:
        return float(text) if any(sign.isdigit() for sign in text) else text
    except ValueError:
        return text


Errors = list[dict[str, Any]]  # as pydantic tells them


def _validated(values: dict[str, Any]) -> tuple[Recipe | None, Errors]:
    try:
        return _adapter().validate_python(values), []
    except ValidationError as error:
        return None, [dict(one) for one in error.errors()]


@cache
def _adapter() -> TypeAdapter[Recipe]:
    return TypeAdapter(Recipe)  # which takes 20 ms to build


def _hidden(values: dict[str, Any], wrong: Errors) -> Errors:
    """Find contradictions that other mistakes hide: of two fields that are sound by themselves.

    A configuration is looked at as a whole only where each of its fields is sound. So the fields
    that are wrong are taken out, and the rest is looked at again.
    """
    rest, out, found = copy.deepcopy(values), set[tuple[Any, ...]](), Errors()
    for _ in range(_LOOKS):
        for one in wrong:
            _take_out(rest, one, out)
        _, wrong = _validated(rest)
        found += [one for one in wrong if one["type"] == "value_error" and _apart(one, out)]
    return found


def _take_out(values: dict[str, Any], error: Mapping[str, Any], out: set[tuple[Any, ...]]) -> None:
    """Take the fields that an error is about out of a recipe's values; put in what it misses."""
    place, target = tuple(error["loc"]), values
    fields_of, at = target, 0  # the mapping of fields that the error lies in, and how deep that is
    for depth, part in enumerate(place):
        there = target if isinstance(target, dict) else ()
        if isinstance(target, list):
            there = range(len(target))
        if part not in there:
            break  # it is missing, or one of the kinds that a field may have
        target = target[part]
        if isinstance(target, dict):
            fields_of, at = target, depth + 1
    names = place[at : at + 1] or re.findall(r"\w+", error["msg"])
    for name in names:
        path = (*place[:at], name)
        if error["type"] == "missing":
            fields_of[name] = 1  # the fewest epochs; where no number can be, nothing is lost
        elif name in fields_of:
            del fields_of[name]
            out.add(path)


def _apart(error: Mapping[str, Any], out: set[tuple[Any, ...]]) -> bool:
    """Whether a contradiction has nothing to do with the fields that were taken out.

    Those of a stage and of the recipe name all their fields; others may depend on any beside them.
    """
    place, words = tuple(error["loc"]), set(re.findall(r"\w+", error["msg"]))
    if place == () or (place[0] == "stages" and len(place) == 2):
        return not any(path[-1] in words for path in out)
    return all(path[:-1] != place for path in out)


def _sentence(error: Mapping[str, Any]) -> str:
    """Say what pydantic found, with the place as the command line names it."""
    parts = [part + 1 if isinstance(part, int) else part for part in error["loc"]]
    place = ".".join(map(str, parts)) or "recipe"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        near = did_you_mean(str(parts[-1]), _names_at(error["loc"]))
        return f"{place}: there is no such field{near}"
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "should")
    message = message.replace("a valid tuple", "a list")
    given = error.get("input")
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{place}: {message}{shown}"


def _names_at(loc: tuple[str | int, ...]) -> list[str]:
    """Name the fields of the configuration that a place of a recipe lies in."""
    kind: Any = Recipe
    for part in loc[:-1]:
        if isinstance(part, str) and part in get_type_hints(kind):
            kind = _dataclass_in(get_type_hints(kind)[part]) or kind
    return [field.name for field in fields(kind)]


def _dataclass_in(hint: Any) -> Any:
    """Find the configuration inside `Stage | None` or `tuple[Stage, ...]`."""
    if is_dataclass(hint):
        return hint
    return next((found for one in get_args(hint) if (found := _dataclass_in(one))), None)
