"""The folder of a run: recipe.json, log, states, checkpoints; finished.json at the end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from captioner.checkpoint import current_settings
from captioner.errors import ConfigError, DataError, OutputError
from captioner.model.model import CaptionModel
from captioner.shared.files import replace_file, writing
from captioner_training.data.grids import GRIDS_FILES
from captioner_training.recipe import Recipe
from captioner_training.state import Progress

_FORMAT = 6
# A resumed run may change these fields: they do not affect the results.
_FREE = (
    "data.root", "data.workers", "save_every_minutes", "keep_epochs", "compile", "log_every",
)  # fmt: skip
_KEPT = 2  # states
# Files and folders that may exist when a run begins.
_BEFORE_A_RUN = {"lock", "cache", "scenes", "tensorboard"}
_GONE = {"save_every_steps", "keep_states", "keep_files"}  # fields of earlier versions


class RunFolder:
    """The folder of a run: either empty, or with a run of this recipe to resume.

    A run that failed before its first checkpoint can be restarted with any recipe. A precision
    `auto` is replaced by that of the run to resume, or else by `default_precision`.
    """

    def __init__(
        self, recipe: Recipe, out: Path, *, default_precision: Literal["bfloat16", "float32"]
    ) -> None:
        self.out = out
        self.best, self.last = out / "best.safetensors", out / "last.safetensors"
        self.epochs = out / "epochs"
        self._recipe_file, self._finished_file = out / "recipe.json", out / "finished.json"
        self.finished = self._finished_file.exists()
        existing = read_json(self._recipe_file) or {}
        before = read_recipe(existing)
        if recipe.precision == "auto":
            recipe = replace(recipe, precision=before.precision if before else default_precision)
        self.recipe = recipe
        if existing and (self.finished or self.best.exists() or self.states()):
            is_sampled = before and any(s.get("scheduled_sampling") for s in existing["stages"])
            if is_sampled and not self.finished:
                raise ConfigError(
                    f"{out} has a run with scheduled_sampling, which is gone: choose another "
                    f"--out; --weights can name {self.best}"
                )
            self._refuse_other_recipe(plain(before) if before else existing)
            return
        # Files of a run that failed before its first checkpoint are overwritten.
        known = _BEFORE_A_RUN | ({"recipe.json", "log.jsonl"} if before else set())
        files = (path for path in out.glob("*") if not path.is_dir() or any(path.iterdir()))
        if {path.name for path in files} - known:
            raise ConfigError(f"{out} has other files, but no run to resume: choose another --out")

    def _refuse_other_recipe(self, existing: Mapping[str, Any]) -> None:
        old, new = flat(existing), flat(plain(self.recipe))
        changed = [
            f"{name} was {old.get(name)!r}, is {new.get(name)!r}"
            for name in sorted(old.keys() | new.keys())
            if name not in _FREE and old.get(name) != new.get(name)
        ]
        if changed:
            longer = f"; to train longer, start from --weights {self.best}" if self.finished else ""
            raise ConfigError(
                f"{self.out} has a run of another recipe ({'; '.join(changed)}): choose another "
                f"--out, or restore these fields{longer}"
            )

    def load(self, *, digest: str) -> dict[str, Any] | None:
        """Return the newest readable state; None if there are no states or the run is finished.

        Raises ConfigError for other data, and DataError if none of the states can be read.
        """
        state = (read_json(self._finished_file) or {}) if self.finished else self._newest()
        if state is not None and state.get("data") != digest:
            raise ConfigError(
                f"{self.out} has a run on other images, captions or words: choose another --out"
            )
        return None if self.finished else state

    def _newest(self) -> dict[str, Any] | None:
        problems = []
        for path in self.states():
            try:
                state: Any = torch.load(path, map_location="cpu", weights_only=True)
            except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError) as error:
                problems.append(f"{path}: {_reason(error)}")
                continue
            if isinstance(state, dict) and state.get("format") == _FORMAT:
                return state
            problems.append(f"{path} was written by another version of Captioner")
        if problems:
            raise DataError(
                f"no state of this run can be read ({problems[0]}): start again with another "
                "--out; --weights can name this run's best checkpoint"
            )
        return None

    def states(self) -> list[Path]:
        """Return the saved states, newest first."""
        return sorted((self.out / "state").glob("step-*.pt"), reverse=True)

    def check_space(self, model: CaptionModel, *, images: int) -> None:
        """Check that the disk has room for grids, and for three states of 20 bytes a parameter."""
        side = self.recipe.transform.size // model.encoder.config.stride
        is_frozen = any(stage.fine_tune_from is None for stage in self.recipe.stages)
        grids = 2 * side * side * model.encoder.channels() * images if is_frozen else 0
        needed = grids + (_KEPT + 1) * 20 * sum(tensor.numel() for tensor in model.parameters())
        existing = (*self.states(), *(self.out / "cache").glob(GRIDS_FILES))
        disk = next(path for path in (self.out, *self.out.parents) if path.exists())
        free = shutil.disk_usage(disk).free + sum(path.stat().st_size for path in existing)
        if free < needed:
            raise OutputError(
                f"the run needs {needed / 1e9:.2f} GB, but {self.out} has {free / 1e9:.2f} GB: "
                "free some space, or choose another --out"
            )

    def begin(self) -> None:
        """Write the recipe, and make the folder of the epochs that are kept."""
        write_json(self._recipe_file, plain(self.recipe))
        if self.recipe.keep_epochs:
            with writing(self.epochs):
                self.epochs.mkdir(exist_ok=True)

    def save(self, state: Mapping[str, Any], *, digest: str) -> None:
        """Write a state atomically. Earlier states are kept if it cannot be written."""
        path = self.out / "state" / f"step-{state['progress']['global_step']:09d}.pt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(path) as file:
                torch.save({"format": _FORMAT, "data": digest, **state}, file)
            for old in self.states()[_KEPT:]:
                old.unlink()
        except (OSError, RuntimeError, OutputError) as error:  # torch wraps its writer's errors
            kept = self.states()
            rest = f" from {kept[0]}" if kept else ""
            raise OutputError(
                f"{path} cannot be written ({_reason(error)}): free some space; the same command "
                f"then resumes{rest}"
            ) from error

    def finish(self, progress: Progress, *, digest: str) -> None:
        """Write finished.json; remove states and the cache."""
        note = {"recipe": plain(self.recipe), "data": digest, "progress": asdict(progress)}
        write_json(self._finished_file, note)
        self.finished = True
        for name, pattern in (("state", "step-*.pt"), ("cache", GRIDS_FILES)):
            folder = self.out / name
            if not folder.is_symlink():  # other runs may share it
                for path in (*folder.glob(pattern), *folder.glob(".captioner-*.part")):
                    path.unlink(missing_ok=True)
                with suppress(OSError):  # other files stay
                    folder.rmdir()


def read_recipe(values: Any) -> Recipe | None:
    """Return a recipe from its JSON values, or None if they are invalid.

    Recipes of 0.2 may have fields that are gone, and data sets given by their files: the style or
    the file of the captions is then the name.
    """
    try:
        current = {name: values[name] for name in values.keys() - _GONE}
        current["stages"] = [{**stage} for stage in values["stages"]]
        for stage in current["stages"]:
            stage.pop("scheduled_sampling", None)
            (stage.get("self_critical") or {}).pop("baseline", None)
        current["generation"] = current_settings(values["generation"])
        current["data"] = {**values["data"]}
        for split in ("train", "validation"):
            current["data"][split] = [
                one if isinstance(one, str) else one.get("style") or Path(one["captions"]).stem
                for one in values["data"].get(split, ())
            ]
        return TypeAdapter(Recipe).validate_python(current)
    except (ValidationError, ConfigError, AttributeError, KeyError, TypeError):
        return None


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
    """Write a JSON object."""
    with replace_file(path) as file:
        file.write((json.dumps(values, indent=2) + "\n").encode())


def flat(values: Any, separator: str = ".") -> dict[str, Any]:
    """Name nested values as on the command line: {"stages.1.epochs": 3}."""
    if not isinstance(values, dict | list) or not values:
        return {"": values}
    pairs = values.items() if isinstance(values, dict) else enumerate(values, start=1)
    return {
        f"{key}{separator}{name}".removesuffix(separator): leaf
        for key, value in pairs
        for name, leaf in flat(value, separator).items()
    }


def _reason(error: BaseException) -> str:
    """Return the reason of the operating system, which torch wraps in its own exceptions."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    cause = error.__cause__ or error.__context__
    return str(error).splitlines()[0] if cause is None else _reason(cause)


@contextmanager
def lock_folder(file: Path, *, command: str, folder: Path) -> Iterator[None]:
    """Hold a lock file until the block or the process ends; messages name command and folder.

    Missing parent folders are created, and removed again if the block leaves them empty. Raises
    OutputError: another process has the lock.
    """
    created = [parent for parent in file.parents if not parent.exists()]
    lock = FileLock(file, blocking=False)
    with writing(folder):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise OutputError(
                f"another `captioner {command}` is running in {folder}: wait until it ends, or "
                "choose another folder"
            ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            if created and set(file.parent.iterdir()) <= {file}:
                file.unlink(missing_ok=True)
                for parent in created:
                    parent.rmdir()
        lock.release()
