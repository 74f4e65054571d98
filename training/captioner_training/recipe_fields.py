"""All fields of a recipe, with their defaults and reasons, as the source code gives them."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from captioner.vision.bounds import OneOf
from captioner_training.recipe import Recipe

__all__ = ["fields_text"]

_WIDTH = 96  # columns of a reason


def fields_text() -> str:
    """List every field of a recipe as the command line names it.

    Each is followed by its default as YAML, or the choices that there are, and by the comment that
    stands beside it in the source.
    """
    return "\n".join(_lines(Recipe, "")) + "\n"


def _lines(kind: Any, prefix: str) -> Iterator[str]:
    hints, marked = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    reasons = _reasons(kind)
    for field in fields(kind):
        name = f"{prefix}{field.name}"
        inner, many = _configuration(hints[field.name])
        reason = textwrap.wrap(reasons.get(field.name, ""), _WIDTH)
        if inner is None or reason or field.default is not MISSING:
            yield f"{name}: {_default(field)}{_choices(marked[field.name])}".rstrip()
            yield from (f"    {line}" for line in reason)
        if inner is not None:
            yield from _lines(inner, f"{name}.1." if many else f"{name}.")


def _configuration(hint: Any) -> tuple[Any, bool]:
    """Find the configuration that a field holds, and whether it holds a list of them."""
    if is_dataclass(hint):
        return hint, False
    for one in get_args(hint):
        inner, many = _configuration(one)
        if inner is not None:
            return inner, many or get_origin(hint) is tuple
    return None, False


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        usual = "(the name of the recipe's file)" if field.name == "name" else "(required)"
        return usual if field.default_factory is MISSING else ""
    return json.dumps(field.default) if not isinstance(field.default, str) else field.default


def _choices(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"  ({', '.join(map(str, get_args(hint)))})"
    if get_origin(hint) is Annotated:
        tables = [mark.names for mark in hint.__metadata__ if isinstance(mark, OneOf)]
        return f"  ({', '.join(*tables)})" if tables else ""
    return ""


@cache
def _reasons(kind: Any) -> dict[str, str]:
    """Read the comments beside the fields of a configuration: above a field, and behind it."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    tree = ast.parse(source).body[0]
    found = {}
    for node in tree.body if isinstance(tree, ast.ClassDef) else ():
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        above: list[str] = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.lstrip().startswith("#"):
                break
            above.insert(0, line.strip(" #"))
        last = node.end_lineno or node.lineno
        behind = lines[last - 1].encode()[node.end_col_offset or 0 :].decode()
        found[node.target.id] = " ".join([*above, behind.strip(" #")]).strip()
    return found
