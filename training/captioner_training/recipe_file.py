"""Recipes as files: YAML, shipped or one's own, with single fields set on the command line."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import TypeAdapter, ValidationError

from captioner.errors import ConfigError
from captioner.paths import did_you_mean, expanded, there_is_no
from captioner_training.recipe import Recipe
from captioner_training.recipes import shipped_recipes

__all__ = ["fields_text", "load_recipe", "recipe_text"]

_WIDTH = 96  # columns of a reason


def load_recipe(name: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read a shipped recipe by its name, or a YAML file, and set single fields anew.

    Those are by their dotted names, with stages counted from 1: {"stages.1.epochs": "3"}.

    Raises ConfigError: no such recipe, not YAML, or fields that do not fit: all of them at once.
    """
    source = _source(name)
    values = _parse(recipe_text(name), f"recipe {source}")
    if not isinstance(values, dict):
        raise ConfigError(f"recipe {source} is not a YAML mapping of fields to values")
    values.setdefault("name", source.stem)
    problems = [
        f"{key}: {problem}"
        for key, text in (overrides or {}).items()
        if (problem := _set(values, key, text))
    ]
    try:
        recipe = TypeAdapter(Recipe).validate_python(values)
    except ValidationError as error:
        problems += map(_sentence, error.errors())
    if problems:
        raise ConfigError(f"recipe {name} cannot be used:\n  " + "\n  ".join(problems))
    return recipe


def recipe_text(name: str) -> str:
    """Give a shipped recipe, or a file's, as it is written.

    Raises ConfigError: there is no such recipe, or it cannot be read.
    """
    source = _source(name)
    try:
        return source.read_text(encoding="utf-8")
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
        return shipped[name]
    file = Path(f"{name}.yaml")
    near = f", did you mean {file}?" if file.is_file() else did_you_mean(name, shipped)
    raise ConfigError(
        f"there is no recipe {name!r}{f'{near} Name' if near else ': name'} a .yaml file, or one "
        f"of {', '.join(shipped)}"
    )


class _Loader(yaml.SafeLoader):
    """YAML without what a few lines of could take the whole memory.

    Numbers, switches and dates are texts here: pydantic reads them as the field wants them. Of a
    key that comes twice YAML would take the last without a word.

    Raises YAMLError: it is not YAML, or says more.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        sign: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
        for sign, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read a value as it is written; refuse what a recipe does not need."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        odd = None
        if event.anchor is not None:
            odd = "anchors, aliases and merge keys (&, *, <<) are not read: write the values out"
        elif event.tag is not None:
            odd = f"tags (!) are not read: write the value without {event.tag!a}"
        if odd:
            raise yaml.composer.ComposerError(None, None, odd, event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Read a mapping as it is written. Raises YAMLError where a key comes twice."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            odd = f"{twice[0]} comes twice"
            raise yaml.composer.ComposerError(None, None, odd, node.start_mark)
        return node


def _parse(text: str, what: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark, said = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f", line {mark.line + 1}," if mark else ""
        said = said or str(error).splitlines()[0]
        raise ConfigError(f"{what}{line} is not YAML as recipes are: {said}") from error
    except RecursionError as error:
        raise ConfigError(f"{what} has too many lists and mappings inside each other") from error


def _set(values: dict[str, Any], key: str, text: str) -> str | None:
    """Set one dotted field; return what is wrong with it, if anything."""
    *path, last = key.split(".")
    target: Any = values
    for part in path:
        if isinstance(target, list):
            if not part.isdigit() or not 1 <= int(part) <= len(target):
                return f"there is no {part}: they are counted from 1 to {len(target)}"
            target = target[int(part) - 1]
        elif isinstance(target, dict):
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
    if not isinstance(target, dict):
        return "there is no such field"
    # A path may hold " #", or be called 2024: what is no list, mapping or null stays as typed.
    try:
        target[last] = _parse(text, "it") if text[:1] in ("[", "{") or text == "null" else text
    except ConfigError as error:
        return error.detail
    return None


def _sentence(error: Mapping[str, Any]) -> str:
    """Say what pydantic found, with the place as the command line names it."""
    parts = [str(part + 1 if isinstance(part, int) else part) for part in error["loc"]]
    place = ".".join(parts) or "recipe"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        above = ".".join("1" if part.isdigit() else part for part in parts[:-1])
        names = [name for name, _, _ in _fields()]
        if elsewhere := [one for one in names if one.rpartition(".")[2] == parts[-1]]:
            return f"{place}: there is no such field, did you mean {elsewhere[0]}?"
        beside = [one.removeprefix(f"{above}.").partition(".")[0] for one in names]
        return f"{place}: there is no such field{did_you_mean(parts[-1], beside)}"
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "should")
    message = message.replace("a valid tuple", "a list")
    given = error.get("input")
    shown = f" (given: {given[:40]!r})" if isinstance(given, str) else ""
    return f"{place}: {message}{shown}"


def fields_text() -> str:
    """List every field of a recipe as the command line names it: default, choices and reason."""
    lines = list[str]()
    for name, about, reason in _fields():
        lines += [f"{name}: {about}".rstrip()]
        lines += [f"    {line}" for line in textwrap.wrap(reason, _WIDTH)]
    return "\n".join(lines) + "\n"


def _fields() -> Iterator[tuple[str, str, str]]:
    """Give each field's dotted name, its default with its choices, and its reason."""
    schema = TypeAdapter(Recipe).json_schema()
    return _fields_of(schema, schema["$defs"], "")


def _fields_of(
    kind: dict[str, Any], known: dict[str, Any], prefix: str
) -> Iterator[tuple[str, str, str]]:
    for name, field in kind["properties"].items():
        forms = [field, *field.get("anyOf", ()), field.get("items", {})]
        inner = [one["$ref"].rpartition("/")[2] for one in forms if "$ref" in one]
        about = "(required)" if name in kind.get("required", ()) else ""
        if "default" in field:
            value = field["default"]
            about = value if isinstance(value, str) else json.dumps(value)
        if choices := [str(choice) for one in forms for choice in one.get("enum", ())]:
            about += f"  ({', '.join(choices)})"
        yield f"{prefix}{name}", about, field.get("description", "")
        many = "1." if field.get("type") == "array" else ""
        for one in inner:
            yield from _fields_of(known[one], known, f"{prefix}{name}.{many}")
