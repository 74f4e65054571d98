"""Recipes as YAML files, with single fields overridden on the command line."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import yaml
from pydantic import TypeAdapter, ValidationError

from captioner.errors import ConfigError
from captioner.model.scores import SCORES, ScoreFunction
from captioner.paths import did_you_mean
from captioner_training.plugins import import_class
from captioner_training.recipe import Recipe
from captioner_training.recipes import recipe_path, recipe_text

_WIDTH = 96  # columns of a field's description


def load_recipe(name: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read a shipped recipe by its name, or a YAML file.

    Args:
        name: a name of shipped_recipes(), or a path that ends with .yaml or .yml.
        overrides: values of single fields by their dotted names, with stages counted from 1:
            {"stages.1.epochs": "3"}.

    Raises ConfigError: the recipe does not exist, is not YAML, or has invalid fields. The message
    names all of them.
    """
    source = recipe_path(name)
    values = _parse(recipe_text(name), f"recipe {source}")
    if not isinstance(values, dict):
        raise ConfigError(f"recipe {source} is not a YAML mapping of fields to values")
    values.setdefault("name", source.stem)
    problems = [
        f"{key}: {problem}"
        for key, text in (overrides or {}).items()
        if (problem := _set(values, key, text))
    ]
    _register_score(values)
    try:
        recipe = TypeAdapter(Recipe).validate_python(values)
    except ValidationError as error:
        problems += map(_sentence, error.errors())
    if problems:
        raise ConfigError(f"recipe {name} cannot be used:\n  " + "\n  ".join(problems))
    return recipe


def _register_score(values: Mapping[str, Any]) -> None:
    """Import a decoder.score that is not built in. Raises ConfigError."""
    decoder = values.get("decoder")
    score = decoder.get("score") if isinstance(decoder, dict) else None
    if isinstance(score, str) and (":" in score or "." in score):
        SCORES[score] = import_class(score, ScoreFunction, field="decoder.score")


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses anchors, aliases and tags, because aliases can expand to any size.

    Numbers, booleans and dates stay strings: pydantic converts them to the type of their field.

    Raises YAMLError: the YAML is invalid, or a key occurs twice.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        sign: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
        for sign, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read a value; refuse anchors, aliases and tags."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        problem = None
        if event.anchor is not None:
            problem = "anchors, aliases and merge keys (&, *, <<) are not allowed: repeat the value"
        elif event.tag is not None:
            problem = f"tags (!) are not allowed: remove {event.tag!a}"
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Read a mapping; refuse a key that occurs twice."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            problem = f"{repeated[0]} occurs twice"
            raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
        return node


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = problem or str(error).splitlines()[0]
        raise ConfigError(f"{source}{line}: invalid YAML: {problem}") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: lists and mappings are nested too deep") from error


def _set(values: dict[str, Any], key: str, text: str) -> str | None:
    above, is_objective, name = key.partition(".objectives.")
    *path, last = [*above.split("."), "objectives", name] if is_objective else key.split(".")
    target: Any = values
    for part in path:
        if isinstance(target, list):
            if not part.isdigit() or not 1 <= int(part) <= len(target):
                return f"there is no {part}: use 1 to {len(target)}"
            target = target[int(part) - 1]
        elif isinstance(target, dict):
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
    if not isinstance(target, dict):
        return "there is no such field"
    # Only lists, mappings and null are parsed as YAML: a path may contain " #", or be called 2024.
    is_yaml = text[:1] in ("[", "{") or text == "null"
    try:
        target[last] = _parse(text, "its value") if is_yaml else text
    except ConfigError as error:
        return error.detail
    return None


def _sentence(error: Mapping[str, Any]) -> str:
    """Return pydantic's error as a sentence, with the field's name as on the command line."""
    parts = [str(part + 1 if isinstance(part, int) else part) for part in error["loc"]]
    place = ".".join(parts) or "recipe"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        above = ".".join("1" if part.isdigit() else part for part in parts[:-1])
        names = [name for name, _, _ in _fields()]
        if elsewhere := [name for name in names if name.rpartition(".")[2] == parts[-1]]:
            return f"{place}: there is no such field, did you mean {elsewhere[0]}?"
        siblings = [name.removeprefix(f"{above}.").partition(".")[0] for name in names]
        return f"{place}: there is no such field{did_you_mean(parts[-1], siblings)}"
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "should")
    message = message.replace("a valid tuple", "a list, [A, B]")
    message = message.replace("a valid dictionary", "a mapping, {NAME: VALUE}")
    value = error.get("input")
    shown = f" (given: {value!r:.40})" if isinstance(value, str | list) else ""
    return f"{place}: {message}{shown}"


def fields_text() -> str:
    """Return a list of all fields: dotted name, default, choices and description."""
    lines = list[str]()
    for name, default, description in _fields():
        lines += [f"{name}: {default}".rstrip()]
        lines += [f"    {line}" for line in textwrap.wrap(description, _WIDTH)]
    return "\n".join(lines) + "\n"


def _fields() -> Iterator[tuple[str, str, str]]:
    """Yield for each field the dotted name, the default with the choices, and the description."""
    schema = TypeAdapter(Recipe).json_schema()
    return _fields_of(schema, schema["$defs"], "")


def _fields_of(
    schema: dict[str, Any], definitions: dict[str, Any], prefix: str
) -> Iterator[tuple[str, str, str]]:
    for name, field in schema["properties"].items():
        forms = [field, *field.get("anyOf", ()), field.get("items", {})]
        nested = [form["$ref"].rpartition("/")[2] for form in forms if "$ref" in form]
        default = "(required)" if name in schema.get("required", ()) else ""
        if "default" in field:
            value = field["default"]
            default = value if isinstance(value, str) else json.dumps(value)
        if choices := [str(choice) for form in forms for choice in form.get("enum", ())]:
            default += f"  ({', '.join(choices)})"
        yield f"{prefix}{name}", default, field.get("description", "")
        index = "1." if field.get("type") == "array" else ""
        for kind in nested:
            yield from _fields_of(definitions[kind], definitions, f"{prefix}{name}.{index}")
