"""The recipe of the run that a folder has, and the one that is asked for now.

Without torch, whose import takes seconds: what cannot go on is refused before that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from captioner.errors import ConfigError
from captioner_training.recipe import Recipe

__all__ = ["goes_on", "plain", "read_note", "refuse_finished", "with_defaults"]

# Fields that a run may be taken up with anew: they do not change what is computed.
_FREE = (
    "data.root", "data.workers", "save_every_minutes", "save_every_steps", "keep_states",
    "keep_files",
)  # fmt: skip


def refuse_finished(recipe: Recipe, out: Path) -> None:
    """Refuse a folder with the finished run of another recipe.

    Raises:
        ConfigError: it has one; the differences are named.

    """
    note = read_note(out)
    if note is not None:
        goes_on(note["recipe"], recipe, out, finished=True)


def goes_on(
    before: dict[str, Any], recipe: Recipe, out: Path, *, finished: bool
) -> Literal["anew", "longer", "as it is"]:
    """Say how a recipe goes on with the run of the recipe `before`, which is in `out`.

    Raises:
        ConfigError: it is another recipe; the differences are named.

    """
    there, now = with_defaults(before), plain(recipe)
    if there["max_steps"] is not None and now["max_steps"] is None:
        return "anew"  # a dry run does not stand in the way of a real one
    if finished and _has_more_epochs(there, now):
        return "longer"
    _refuse_another(there, now, out)
    return "as it is"


def plain(recipe: Recipe) -> dict[str, Any]:
    """Give a recipe as JSON would."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(recipe)))
    return values


def read_note(out: Path) -> dict[str, Any] | None:
    """Read what is known of the finished run in a folder, if it has one."""
    try:
        note: dict[str, Any] = json.loads((out / "finished.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Give the recipe of an older run the fields that came later; it ran as their defaults say."""
    try:
        return plain(TypeAdapter(Recipe).validate_python(values))
    except ValidationError:  # it has fields that are no more, and its differences name them
        return values


def _has_more_epochs(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the last stage has more epochs, and nothing else is different."""
    old, new = _flat(before), _flat(now)
    epochs = f"stages.{len(now['stages'])}.epochs"
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    return changed - {*_FREE} == {epochs} and new[epochs] > old[epochs]


def _refuse_another(before: Mapping[str, Any], now: Mapping[str, Any], out: Path) -> None:
    """Name the fields in which a recipe differs from that of the run in its folder."""
    old, new = _flat(before), _flat(now)
    changed = [
        f"{name}: {old.get(name)!r} there, {new.get(name)!r} now"
        for name in sorted(old.keys() | new.keys())
        if name not in _FREE and old.get(name) != new.get(name)
    ]
    if changed:
        raise ConfigError(
            f"{out} has the run of another recipe:\n  "
            + "\n  ".join(changed)
            + "\nstart with another --out, or go on with the fields as they were"
        )


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Name every leaf of nested mappings and lists by its dotted path, as --FIELD does."""
    if not isinstance(values, dict | list) or not values:
        return {prefix.rstrip("."): values}
    pairs = values.items() if isinstance(values, dict) else enumerate(values, start=1)
    return {
        name: leaf for key, value in pairs for name, leaf in _flat(value, f"{prefix}{key}.").items()
    }
