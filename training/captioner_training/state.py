"""How far a run is: all that is needed to go on as if it had never stopped, and where it lies.

A run's folder has recipe.json, which says whose run it is; state/ with the newest states; and at
the end finished.json.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from captioner.errors import ConfigError, DataError, GenerationError, OutputError
from captioner.files import replace_file, writing
from captioner.model import CaptionModel
from captioner_training.data.grids import GRIDS_FILES
from captioner_training.distributed import Processes
from captioner_training.optimizer import AveragedWeights, build_optimizer, build_scheduler
from captioner_training.recipe import Recipe

__all__ = [
    "Progress",
    "RunFolder",
    "StageState",
    "TrainState",
    "diverged",
    "plain",
    "read_json",
    "write_json",
]

_FORMAT = 4
_SHOWN = 5  # differences of another recipe
# Fields that a run may be taken up with anew: they do not change what is computed.
_FREE = (
    "data.root", "data.workers", "save_every_minutes", "save_every_steps", "keep_states",
    "keep_epochs", "keep_files",
)  # fmt: skip
_BEFORE_A_RUN = {"lock", "cache", "scenes"}  # may be there when it begins


@dataclass(kw_only=True)
class Progress:
    """How far a run is. Everything here and in the model stands as after the last step.

    A score is the CIDEr on validation and minus the cross-entropy there: few validation photos give
    many epochs the same CIDEr, often 0, while the cross-entropy tells them apart.
    """

    stage: int = 0  # from 0, as are the next two; people read of them from 1
    epoch: int = 0  # of the stage
    step: int = 0  # of the epoch
    taken: int = 0  # steps of the stage
    total: int = 0  # steps of the whole run
    best: tuple[float, float] = (-1.0, 0.0)  # the highest score so far
    best_at: tuple[int, int] | None = None  # its stage and epoch, from 1; None: untouched
    untouched: float | None = None  # CIDEr of the checkpoint that the run began from
    stage_best: tuple[float, float] = (-1.0, 0.0)  # the highest score of this stage
    stale: int = 0  # epochs since stage_best
    log_bytes: int = 0  # how long the log is


class StageState:
    """What a stage remembers from step to step, beside the model's weights.

    What it trains of the model is thawed already; `progress` is that of the run. `config` is the
    stage of the recipe, `steps` are those of the whole stage, and `sums` are of what this process's
    steps of the epoch returned.
    """

    def __init__(
        self, model: CaptionModel, progress: Progress, recipe: Recipe, *, steps: int
    ) -> None:
        self.model, self.progress, self.steps = model, progress, steps
        self.config = recipe.stages[progress.stage]
        self.optimizer = build_optimizer(model, recipe, self.config)
        self.scheduler = build_scheduler(
            self.optimizer, self.config, steps=steps, taken=progress.taken
        )
        self.average = AveragedWeights(model, decay=recipe.ema)
        self.sums: dict[str, Tensor] = {}
        self._best: dict[str, Tensor] | None = None  # averaged weights for the next stage

    @property
    def is_out_of_patience(self) -> bool:
        """Whether as many epochs as the stage allows have brought no better score."""
        patience = self.config.patience
        return patience is not None and self.progress.stale >= patience

    @property
    def is_over(self) -> bool:
        """Whether the stage has had its steps, or has not become better for long enough."""
        progress = self.progress
        # A dry run's steps may end inside an epoch, which is validated like any other.
        dry = progress.step == 0 and progress.taken >= self.steps
        return progress.epoch >= self.config.epochs or dry or self.is_out_of_patience

    def count_step(self, values: Mapping[str, Tensor]) -> None:
        """Record a step by what it returned."""
        self.sums = {name: self.sums.get(name, 0) + value for name, value in values.items()}
        self.progress.step += 1
        self.progress.taken += 1
        self.progress.total += 1

    def count_epoch(self, cider: float, cross_entropy: float) -> bool:
        """Record an epoch's scores on validation; say whether it is the best of the run.

        The model has the averaged weights meanwhile.
        """
        progress, score = self.progress, (cider, -cross_entropy)
        progress.epoch, progress.step = progress.epoch + 1, 0
        self.sums = {}
        progress.stale += 1
        best_of_stage = score > progress.stage_best
        if best_of_stage:
            progress.stage_best, progress.stale = score, 0
        if best_of_stage or self.config.hand_on == "last":
            self._best = {
                name: parameter.detach().clone()
                for name, parameter in self.model.named_parameters()
                if parameter.requires_grad
            }
        best = score > progress.best
        if best:
            progress.best, progress.best_at = score, (progress.stage + 1, progress.epoch)
        return best

    def end(self) -> None:
        """Hand on the weights of the epoch that `hand_on` names to the next stage."""
        if self._best is not None:
            self.model.load_state_dict(self._best, strict=False)
        progress, fresh = self.progress, Progress()
        progress.stage += 1
        progress.epoch = progress.step = progress.taken = progress.stale = 0
        progress.stage_best = fresh.stage_best

    def state_dict(self) -> dict[str, Any]:
        """Give all but the sums, which each process has of its own."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "average": self.average.state_dict(),
            "best": self._best,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state_dict of the same stage."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.average.load_state_dict(state["average"])
        self._best = state["best"]


class TrainState:
    """A model in training: its weights, how far the run is, and what its stage remembers.

    `stage` is None between two stages. `conditions_before` are those of the run that this one goes
    on from.
    """

    def __init__(self, model: CaptionModel, *, processes: Processes) -> None:
        self.model, self.processes = model, processes
        self.progress = Progress()
        self.stage: StageState | None = None
        self.conditions_before: str | None = None
        self._loaded: Mapping[str, Any] | None = None  # until its stage begins

    def begin_stage(self, recipe: Recipe, *, steps: int) -> StageState:
        """Begin the stage of so many steps; after `load_state_dict`, as it was saved."""
        stage = self.stage = StageState(self.model, self.progress, recipe, steps=steps)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            if loaded["stage"] is not None:
                stage.load_state_dict(loaded["stage"])
            stage.sums = self._restore_process(loaded["processes"])
        return stage

    def end_stage(self) -> None:
        """Hand the stage's weights on to the next one."""
        if self.stage is not None:
            self.stage.end()
        self.stage = None

    def state_dict(self) -> dict[str, Any]:
        """Give all of it. Every process calls this; each adds its random numbers and its sums.

        Raises GenerationError: the weights are NaN or infinite.
        """
        sums = self.stage.sums if self.stage is not None else {}
        mine = {
            "random": _random(self.processes.device),
            "sums": {name: value.cpu() for name, value in sums.items()},
        }
        each = self.processes.gather(mine)
        weights = self.model.state_dict()
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise diverged(self.progress.total)
        return {
            "progress": asdict(self.progress),
            "model": weights,
            "stage": None if self.stage is None else self.stage.state_dict(),
            "processes": each,
            "conditions": self.processes.conditions,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state_dict; what belongs to a stage waits for `begin_stage`."""
        self.progress = Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        self.conditions_before = state["conditions"]
        self._loaded = state

    def _restore_process(self, each: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Restore this process's random numbers, and give its sums.

        Of another number of processes the main one gets all sums, and nobody's random numbers fit.
        """
        device = self.processes.device
        if len(each) == self.processes.world:
            mine = each[self.processes.rank]
            torch.set_rng_state(mine["random"]["torch"])
            if device.type == "cuda" and mine["random"]["cuda"] is not None:
                torch.cuda.set_rng_state(mine["random"]["cuda"], device)
            sums = mine["sums"]
        else:
            share = 1 if self.processes.main else 0
            sums = {
                name: share * sum(one["sums"][name] for one in each) for name in each[0]["sums"]
            }
        return {name: value.to(device) for name, value in sums.items()}


def _random(device: torch.device) -> dict[str, Tensor | None]:
    """Take down the random numbers of this process; training draws from no others."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"torch": torch.get_rng_state(), "cuda": cuda}


def diverged(step: int) -> GenerationError:
    """Make the error of a training that has come to no number by a step."""
    return GenerationError(
        f"the weights became NaN or infinite by step {step}: lower learning_rate, or, "
        "where it computes in bfloat16, take --precision float32; with another --out"
    )


class RunFolder:
    """The folder that a run writes into: empty, or of a run of this recipe, which goes on.

    A run that kept nothing, for it failed before its first state, leaves its folder to any recipe.

    Only the main process writes. `recipe` has its precision settled: `auto` is what the run that is
    there computes in, else bfloat16 where the hardware is `fast` in it.

    Raises ConfigError: the folder has files, and no run of this recipe.
    """

    def __init__(self, recipe: Recipe, out: Path, *, fast: bool) -> None:
        self.out = out
        self.best, self.last = out / "best.safetensors", out / "last.safetensors"
        self._recipe_file, self._finished_file = out / "recipe.json", out / "finished.json"
        self.finished = self._finished_file.exists()
        there = read_json(self._recipe_file) or {}
        precision: Any = "bfloat16" if fast else "float32"
        if there.get("precision") in ("bfloat16", "float32"):
            precision = there["precision"]
        if recipe.precision == "auto":
            recipe = replace(recipe, precision=precision)
        self.recipe = recipe
        of_a_run: set[str] = set()
        with suppress(ValidationError, ConfigError):  # what is new since has its default
            there = plain(TypeAdapter(Recipe).validate_python(there))
            of_a_run = {self._recipe_file.name, "log.jsonl"}  # which kept nothing
        if there and (self.finished or self.best.exists() or self.states()):
            self._refuse_other_recipe(_flat(there), _flat(plain(recipe)))
            return
        found = (path for path in out.glob("*") if not path.is_dir() or any(path.iterdir()))
        if {path.name for path in found} - _BEFORE_A_RUN - of_a_run:
            raise ConfigError(
                f"{out} is not empty and has no run to go on with: choose another --out"
            )

    def _refuse_other_recipe(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        changed = [
            f"{name}: {old.get(name)!r} there, {new.get(name)!r} now"
            for name in sorted(old.keys() | new.keys())
            if name not in _FREE and old.get(name) != new.get(name)
        ]
        if changed:
            more = f"; and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            raise ConfigError(
                f"{self.out} has the run of another recipe ({'; '.join(changed[:_SHOWN])}{more}): "
                "choose another --out, or set the fields as they were"
            )

    def load(self, *, digest: str) -> dict[str, Any] | None:
        """Read the newest state that is whole; None where there is none, or the run is finished.

        Raises:
            ConfigError: the run began with other data.
            DataError: there are states, but none can be read.
        """
        state = (read_json(self._finished_file) or {}) if self.finished else self._newest()
        if state is not None and state.get("data") != digest:
            raise ConfigError(
                f"{self.out} has a run on other images or captions, or from a model with other "
                "words: choose another --out"
            )
        return None if self.finished else state

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
            reason = reason or f"{path}: another version of Captioner wrote it"
        if reason:
            raise DataError(
                f"no state of this run can be read ({reason}): start again with another --out, "
                "from its best checkpoint with --weights if you like"
            )
        return None

    def epoch(self, stage: int, number: int) -> Path:
        """Name the checkpoint of an epoch of a stage, both from 1.

        Raises OutputError: their folder cannot be made.
        """
        folder = self.out / "epochs"
        with writing(folder):
            folder.mkdir(exist_ok=True)
        return folder / f"{stage}.{number}.safetensors"

    def states(self) -> list[Path]:
        """Name the states that are there, the newest first."""
        return sorted((self.out / "state").glob("step-*.pt"), reverse=True)

    def check_room(self, model: CaptionModel, *, images: int, shared: Path) -> None:
        """Refuse to begin what the disk cannot hold; what an interrupted run has written counts.

        Raises OutputError: grids, states and checkpoints together are more than is free.
        """
        needed = _room(self.recipe, model, images=images)
        kept = (self.out / "epochs").glob("*.safetensors")
        checkpoints = filter(Path.exists, (self.best, self.last, *kept))
        there = (*self.states(), *checkpoints, *(shared / "cache").glob(GRIDS_FILES))
        size = sum(needed.values()) - sum(path.stat().st_size for path in there)
        place = next(path for path in (self.out, *self.out.parents) if path.exists())
        if (free := shutil.disk_usage(place).free) < size:
            parts = ", ".join(f"{name} {part / 1e9:.2f}" for name, part in needed.items() if part)
            raise OutputError(
                f"the run takes {sum(needed.values()) / 1e9:.2f} GB ({parts}) and {self.out} has "
                f"{free / 1e9:.2f} GB free: make room, or choose another --out"
            )

    def begin(self) -> None:
        """Write the recipe.

        Raises OutputError: the folder cannot be written.
        """
        write_json(self._recipe_file, plain(self.recipe))

    def save(self, state: Mapping[str, Any], *, digest: str) -> None:
        """Write a state, which is either whole or not there, whenever the machine stops.

        Raises OutputError: it cannot be written; the states before it are as they were.
        """
        path = self.out / "state" / f"step-{state['progress']['total']:09d}.pt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(path) as file:
                torch.save({"format": _FORMAT, "data": digest, **state}, file)
            for old in self.states()[self.recipe.keep_states :]:
                old.unlink()
        except (OSError, RuntimeError, OutputError) as error:  # torch wraps its writer's errors
            before = self.states()
            rest = f"the last state, {before[0]}, is whole: " if before else ""
            raise OutputError(
                f"{path} cannot be written ({_reason(error)}); {rest}make room and start the same "
                "command again"
            ) from error

    def finish(self, progress: Progress, *, digest: str) -> None:
        """Note that the run is over, and remove what only an unfinished one needs.

        Raises OutputError: the note cannot be written.
        """
        note = {"recipe": plain(self.recipe), "data": digest, "progress": asdict(progress)}
        write_json(self._finished_file, note)
        self.finished = True
        if self.recipe.keep_files:
            return
        for name, pattern in (("state", "step-*.pt"), ("cache", GRIDS_FILES)):
            folder = self.out / name
            if not folder.is_symlink():  # else other runs may have it too
                for path in (*folder.glob(pattern), *folder.glob(".captioner-*.part")):
                    path.unlink(missing_ok=True)
                with suppress(OSError):  # files of others may lie there: they stay
                    folder.rmdir()


def _room(recipe: Recipe, model: CaptionModel, *, images: int) -> dict[str, int]:
    """Work out what a run writes, in bytes, with the file that is written before an old one goes.

    A state has the weights; of those that are trained, the average, the best and two moments.
    """
    encoder = model.encoder
    side = recipe.transform.size // encoder.config.stride
    grid = 2 * side * side * encoder.channels()
    frozen = [stage.fine_tune_from is None for stage in recipe.stages]
    encoded = sum(one and not before for one, before in zip(frozen, [False, *frozen], strict=False))
    weights = sum(one.numel() for one in model.parameters())
    trained, epochs = 0, sum(stage.epochs for stage in recipe.stages)
    for stage in recipe.stages:
        encoder.fine_tune(from_stage=stage.fine_tune_from)
        trained = max(trained, sum(one.numel() for one in model.parameters() if one.requires_grad))
    return {
        "grids": encoded * images * grid,
        "states": (recipe.keep_states + 1) * 4 * (weights + 4 * trained),
        "checkpoints": (3 + epochs * recipe.keep_epochs) * 2 * weights,
    }


def plain(recipe: Recipe) -> dict[str, Any]:
    """Give a recipe as JSON would."""
    values: dict[str, Any] = TypeAdapter(Recipe).dump_python(recipe, mode="json")
    return values


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a mapping; None where there is none, or another file of that name."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a mapping. Raises OutputError where it cannot be written."""
    with replace_file(path) as file:
        file.write((json.dumps(values, indent=2) + "\n").encode())


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Name every leaf of nested mappings and lists by its dotted path, as --FIELD does."""
    if not isinstance(values, dict | list) or not values:
        return {prefix.rstrip("."): values}
    pairs = values.items() if isinstance(values, dict) else enumerate(values, start=1)
    return {
        name: leaf for key, value in pairs for name, leaf in _flat(value, f"{prefix}{key}.").items()
    }


def _reason(error: BaseException) -> str:
    """Find the operating system's word for it below what torch made of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]
