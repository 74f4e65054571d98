"""The recipe of the run that a folder has, and the one that is asked for now.

Without torch, whose import takes seconds: what cannot go on is refused before that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from captioner.errors import ConfigError
from captioner.files import identity
from captioner.paths import expanded
from captioner_training.progress import Progress
from captioner_training.recipe import Recipe

__all__ = [
    "CHECKPOINTS",
    "Note",
    "goes_on",
    "plain",
    "read_note",
    "recipe_there",
    "refuse_folder",
    "refuse_foreign",
    "refuse_own_weights",
    "with_defaults",
]

CHECKPOINTS = ("best.safetensors", "last.safetensors")
"""That a run writes."""

# Fields that a run may be taken up with anew: they do not change what is computed.
_FREE = (
    "data.root", "data.workers", "save_every_minutes", "save_every_steps", "keep_states",
    "keep_files",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a finished run leaves in finished.json."""

    recipe: dict[str, Any]  # as it ran
    data: str  # the digest of its images and captions
    progress: Progress  # at its end


def refuse_folder(recipe: Recipe, out: Path) -> None:
    """Refuse a folder that a run cannot begin or go on in, as far as can be told without torch.

    Raises:
        ConfigError: it has the finished run of another recipe, whose differences are named, or
            what refuse_own_weights and refuse_foreign refuse. Or its note cannot be read.

    """
    refuse_own_weights(recipe, out)
    note = read_note(out)
    if note is not None:
        goes_on(note.recipe, recipe, out, finished=True)
    elif not any((out / "state").glob("step-*.pt")):
        refuse_foreign(recipe, out)


def goes_on(
    before: dict[str, Any], recipe: Recipe, out: Path, *, finished: bool
) -> Literal["anew", "longer", "as it is"]:
    """Say how a recipe goes on with the run of the recipe `before`, which is in `out`.

    Raises:
        ConfigError: it is another recipe; the differences are named.

    """
    there, now = with_defaults(before), plain(recipe)
    if recipe.precision == "auto":  # a run keeps to what its first hardware was fast in
        now["precision"] = there.get("precision", "auto")
    if there.get("max_steps") is not None and now["max_steps"] is None:
        return "anew"  # a dry run does not stand in the way of a real one
    if finished and _has_more_epochs(there, now):
        return "longer"
    _refuse_another(there, now, out)
    return "as it is"


def plain(recipe: Recipe) -> dict[str, Any]:
    """Give a recipe as JSON would."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(recipe)))
    return values


def read_note(out: Path) -> Note | None:
    """Read what is known of the finished run in a folder, if it has one.

    Raises:
        ConfigError: there is a note that cannot be read.

    """
    path = out / "finished.json"
    if not path.exists():
        return None
    try:
        note = TypeAdapter(Note).validate_json(path.read_bytes())
        if not note.progress.finished:
            raise ValueError("of a run that has not ended")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is damaged, or not of a run, so that nobody knows whose checkpoints those in "
            f"{out} are: start with another --out"
        ) from error
    return note


def recipe_there(out: Path, *, dry: bool) -> dict[str, Any] | None:
    """Give the recipe of the run that a folder has, finished or to be gone on with, if it has one.

    Args:
        out: the folder.
        dry: whether a dry run counts too, which decides nothing for a real one.

    Raises:
        ConfigError: there is a note that cannot be read.

    """
    note = read_note(out)
    there = note.recipe if note else None
    if note is None and any((out / "state").glob("step-*.pt")):
        there = _read_recipe(out / "recipe.json")
    if there is None or (there.get("max_steps") is not None and not dry):
        return None
    return with_defaults(there)


def refuse_foreign(recipe: Recipe, out: Path) -> None:
    """Refuse to begin in a folder whose files are not those of this run, interrupted early.

    The folder has neither a note nor a state of a run. An interrupted run that never came to its
    first state has the folder for it; the checkpoints of such a run are those of its first epoch
    or older, and are made again. Where it has kept none of an epoch, which is last.safetensors too,
    the best is the one that it went on from, and any recipe may begin.

    Raises:
        ConfigError: files that would be replaced are others', or it is the run of another recipe.

    """
    there = _read_recipe(out / "recipe.json")
    names = ["recipe.json", "log.jsonl"] if there is None else []
    kept = (out / "last.safetensors").exists()
    begun = there is not None and (out / "state").is_dir()
    checkpoints = [name for name in CHECKPOINTS if (out / name).exists()]
    taken = [name for name in names if (out / name).exists()]
    taken += [] if begun else checkpoints
    if taken:
        raise ConfigError(
            f"{out} has {' and '.join(taken)}, but neither a finished run nor one that could go "
            "on: start with another --out, or move what is there elsewhere"
        )
    if there is not None and kept:
        goes_on(there, recipe, out, finished=False)


def refuse_own_weights(recipe: Recipe, out: Path) -> None:
    """Refuse to go on from a file that the run would replace.

    Raises:
        ConfigError: it is the best or the last checkpoint of the folder.

    """
    for name in ("weights", "encoder_weights"):
        given = getattr(recipe, name)
        if given is None or given in ("bundled", "torchvision", "random"):
            continue
        if any(identity(expanded(given)) & identity(out / one) for one in CHECKPOINTS):
            raise ConfigError(
                f"--{name} {given} would be replaced by this run: start with another --out"
            )


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Give the recipe of an older run the fields that came later; it ran as their defaults say."""
    try:
        return plain(TypeAdapter(Recipe).validate_python(values))
    except ValidationError:  # it has fields that are no more, and its differences name them
        return values


def _read_recipe(path: Path) -> dict[str, Any] | None:
    """Read the recipe that a run noted; None where there is none, or another file of that name."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = isinstance(values, dict) and {"name", "data", "stages"} <= values.keys()
    return values if is_ours else None


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
