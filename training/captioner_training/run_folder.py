"""The folder of a run: recipe.json, log, states, checkpoints; finished.json at the end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from captioner.checkpoint import load_checkpoint
from captioner.errors import ConfigError, DataError, OutputError
from captioner.files import replace_file, writing
from captioner.model.model import CaptionModel
from captioner_training.data.grids import GRIDS_FILES
from captioner_training.recipe import Recipe
from captioner_training.state import Progress

_FORMAT = 5
_SHOWN = 5  # differences named in a message
# A resumed run may change these fields: they do not affect the results.
_FREE = (
    "data.root", "data.workers", "save_every_minutes", "save_every_steps", "keep_states",
    "keep_epochs", "keep_files", "compile", "log_every",
)  # fmt: skip
# Files and folders that may exist when a run begins.
_BEFORE_A_RUN = {"lock", "cache", "scenes", "tensorboard", "wandb", "wandb-run"}
# Folders and files that a finished run does not need. Runs of 0.2 wrote squares.
_REMOVED = (
    ("state", "step-*.pt"),
    ("cache", GRIDS_FILES),
    ("cache", "squares-*.u8"),
)
_RENAMED = {"own": "finetune", "own-language": "new-language"}  # names of recipes in 0.1


class RunFolder:
    """The folder of a run: either empty, or with a run of this recipe to resume.

    A run that failed before its first checkpoint can be restarted with any recipe. A finished run
    continues if the last stage of the recipe has more epochs. Only the main process writes.

    Args:
        recipe: the recipe of the run.
        out: the folder.
        fast: whether the hardware is fast in bfloat16.

    Attributes:
        recipe: the recipe of the run. If its precision is `auto`, it is replaced by the precision
            of the run to resume, or else by the best one for the hardware.
        finished: whether the run is finished.
        extends: whether a finished run continues with more epochs.

    Raises ConfigError: the folder has other files, or a run of another recipe.
    """

    def __init__(self, recipe: Recipe, out: Path, *, fast: bool) -> None:
        self.out = out
        self.best, self.last = out / "best.safetensors", out / "last.safetensors"
        self._recipe_file, self._finished_file = out / "recipe.json", out / "finished.json"
        self.finished = self._finished_file.exists()
        existing = read_json(self._recipe_file) or {}
        precision: Any = "bfloat16" if fast else "float32"
        if existing.get("precision") in ("bfloat16", "float16", "float32"):
            precision = existing["precision"]
        self.extends = False
        if recipe.precision == "auto":
            recipe = replace(recipe, precision=precision)
        self.recipe = recipe
        failed_run: set[str] = set()  # files of a run without a checkpoint, to be overwritten
        with suppress(ValidationError, ConfigError):
            existing = plain(TypeAdapter(Recipe).validate_python(existing))  # adds defaults
            failed_run = {self._recipe_file.name, "log.jsonl"}
        if existing and (self.finished or self.best.exists() or self.states()):
            if _RENAMED.get(existing.get("name", "")) == recipe.name:
                existing["name"] = recipe.name
            self._refuse_other_recipe(_flat(existing), _flat(plain(recipe)))
            return
        files = (path for path in out.glob("*") if not path.is_dir() or any(path.iterdir()))
        if {path.name for path in files} - _BEFORE_A_RUN - failed_run:
            raise ConfigError(f"{out} has other files, but no run to resume: choose another --out")

    def _refuse_other_recipe(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        changed = [
            f"{name} was {old.get(name)!r}, is {new.get(name)!r}"
            for name in sorted(old.keys() | new.keys())
            if name not in _FREE and old.get(name) != new.get(name)
        ]
        last = f"stages.{len(self.recipe.stages)}.epochs"
        if self.finished and old.get(last, 0) < new[last] and len(changed) == 1:
            self.finished, self.extends = False, True
        elif changed:
            more = f"; and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            raise ConfigError(
                f"{self.out} has a run of another recipe ({'; '.join(changed[:_SHOWN])}{more}): "
                "choose another --out, or restore these fields"
            )

    def load(self, *, digest: str) -> dict[str, Any] | None:
        """Return the newest readable state; None if there are no states or the run is finished.

        Raises:
            ConfigError: the run started with other data.
            DataError: there are states, but none of them can be read.
        """
        over = self.finished or self.extends
        state = (read_json(self._finished_file) or {}) if over else self._newest()
        if state is not None and state.get("data") != digest:
            raise ConfigError(
                f"{self.out} has a run on other images, captions or words: choose another --out"
            )
        if self.finished:
            return None
        return self._extended(state or {}) if self.extends else state

    def _extended(self, note: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state that a finished run continues from, with its last weights."""
        progress = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in note["progress"].items()
        }
        progress["stage"] = len(self.recipe.stages) - 1
        progress["epoch"] = progress.pop("stage_epochs")
        weights = load_checkpoint(self.last).model.state_dict()
        return {
            "progress": progress, "model": weights, "stage": None, "processes": None,
            "conditions": None,
        }  # fmt: skip

    def reopen(self) -> None:
        """Remove the files that only a finished run has."""
        for name in ("report.html", "best.trust.safetensors", self._finished_file.name):
            (self.out / name).unlink(missing_ok=True)
        self.extends = False

    def _newest(self) -> dict[str, Any] | None:
        reason = ""
        for path in self.states():
            try:
                state = torch.load(path, map_location="cpu", weights_only=True)
            except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError) as error:
                reason = reason or f"{path}: {_reason(error)}"
                continue
            if isinstance(state, dict) and state.get("format") == _FORMAT:
                return state
            reason = reason or f"{path} was written by another version of Captioner"
        if reason:
            raise DataError(
                f"no state of this run can be read ({reason}): start again with another --out; "
                "--weights can name this run's best checkpoint"
            )
        return None

    def epoch(self, stage: int, number: int) -> Path:
        """Return the path of the checkpoint of an epoch and stage, both counted from 1.

        Raises OutputError: its folder cannot be created.
        """
        folder = self.out / "epochs"
        with writing(folder):
            folder.mkdir(exist_ok=True)
        return folder / f"{stage}.{number}.safetensors"

    def states(self) -> list[Path]:
        """Return the saved states, newest first."""
        return sorted((self.out / "state").glob("step-*.pt"), reverse=True)

    def check_room(self, model: CaptionModel, *, images: int) -> None:
        """Check that the disk has room for the files that the run has not written yet.

        Raises OutputError: grids, states and checkpoints need more space than is free.
        """
        needed = _room(self.recipe, model, images=images)
        kept = (self.out / "epochs").glob("*.safetensors")
        checkpoints = filter(Path.exists, (self.best, self.last, *kept))
        written = sum(path.stat().st_size for path in (*self.states(), *checkpoints))
        # Other runs may have grids there too.
        grids = sum(path.stat().st_size for path in (self.out / "cache").glob(GRIDS_FILES))
        written += min(grids, needed["grids"])
        disk = next(path for path in (self.out, *self.out.parents) if path.exists())
        if (free := shutil.disk_usage(disk).free) < sum(needed.values()) - written:
            parts = ", ".join(f"{name} {part / 1e9:.2f}" for name, part in needed.items() if part)
            raise OutputError(
                f"the run needs {sum(needed.values()) / 1e9:.2f} GB ({parts}), but {self.out} has "
                f"{free / 1e9:.2f} GB free: free some space, or choose another --out"
            )

    def begin(self) -> None:
        """Write the recipe. Raises OutputError."""
        write_json(self._recipe_file, plain(self.recipe))

    def save(self, state: Mapping[str, Any], *, digest: str) -> None:
        """Write a state atomically.

        Raises OutputError: the state cannot be written. Earlier states are kept.
        """
        path = self.out / "state" / f"step-{state['progress']['total']:09d}.pt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(path) as file:
                torch.save({"format": _FORMAT, "data": digest, **state}, file)
            for old in self.states()[self.recipe.keep_states :]:
                old.unlink()
        except (OSError, RuntimeError, OutputError) as error:  # torch wraps its writer's errors
            kept = self.states()
            rest = f" from {kept[0]}" if kept else ""
            raise OutputError(
                f"{path} cannot be written ({_reason(error)}): free some space; the same command "
                f"then resumes{rest}"
            ) from error

    def finish(self, progress: Progress, *, digest: str) -> None:
        """Write finished.json; remove states and the cache. Raises OutputError."""
        note = {"recipe": plain(self.recipe), "data": digest, "progress": asdict(progress)}
        write_json(self._finished_file, note)
        self.finished = True
        if self.recipe.keep_files:
            return
        for name, pattern in _REMOVED:
            folder = self.out / name
            if not folder.is_symlink():  # other runs may share it
                for path in (*folder.glob(pattern), *folder.glob(".captioner-*.part")):
                    path.unlink(missing_ok=True)
                with suppress(OSError):  # other files stay
                    folder.rmdir()


def _room(recipe: Recipe, model: CaptionModel, *, images: int) -> dict[str, int]:
    """Return the bytes that a run writes.

    A state has all weights. For each trained weight it also has the average, the best value and two
    moments. There may be one state more than `keep_states`, because the new one is written before
    the oldest is deleted.
    """
    encoder = model.encoder
    side = recipe.transform.size // encoder.config.stride
    grid = 2 * side * side * encoder.channels()
    frozen = [stage.fine_tune_from is None for stage in recipe.stages]
    caches = sum(now and not before for now, before in zip(frozen, [False, *frozen], strict=False))
    weights = sum(tensor.numel() for tensor in model.parameters())
    trained, epochs = 0, sum(stage.epochs for stage in recipe.stages)
    for stage in recipe.stages:
        encoder.fine_tune(from_stage=stage.fine_tune_from)
        parameters = (tensor for tensor in model.parameters() if tensor.requires_grad)
        trained = max(trained, sum(tensor.numel() for tensor in parameters))
    return {
        "grids": caches * images * grid,
        "states": (recipe.keep_states + 1) * 4 * (weights + 4 * trained),
        "checkpoints": (3 + epochs * recipe.keep_epochs) * 2 * weights,
    }


def plain(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as JSON values."""
    values: dict[str, Any] = TypeAdapter(Recipe).dump_python(recipe, mode="json")
    return values


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is missing or has other content."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object. Raises OutputError."""
    with replace_file(path) as file:
        file.write((json.dumps(values, indent=2) + "\n").encode())


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings and lists to dotted names, as on the command line."""
    if not isinstance(values, dict | list) or not values:
        return {prefix.rstrip("."): values}
    pairs = values.items() if isinstance(values, dict) else enumerate(values, start=1)
    return {
        name: leaf for key, value in pairs for name, leaf in _flat(value, f"{prefix}{key}.").items()
    }


def _reason(error: BaseException) -> str:
    """Return the operating system's reason for an exception raised by torch."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]
