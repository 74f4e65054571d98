"""The state of a run: everything that is needed to resume it exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from captioner.errors import GenerationError
from captioner.model.model import CaptionModel
from captioner_training.distributed import Processes
from captioner_training.optimizer import AveragedWeights, build_optimizer, build_scheduler
from captioner_training.recipe import Recipe

_ROUNDING = 1e-5  # nats per token: smaller differences of cross-entropy are rounding errors


@dataclass(kw_only=True)
class Progress:
    """Counters and scores of a run, as of the last step.

    A score is a pair: the CIDEr on validation, and minus the cross-entropy. The second decides
    between epochs of equal CIDEr, because on a few photos CIDEr is often 0.
    """

    stage: int = 0  # stage, epoch and step count from 0; messages count from 1
    epoch: int = 0  # epoch of the stage
    step: int = 0  # step of the epoch
    taken: int = 0  # steps taken in the stage
    total: int = 0  # steps taken in the run
    best: tuple[float, float] = (-1.0, 0.0)  # highest score of the run
    best_at: tuple[int, int] | None = None  # stage and epoch of `best`, from 1; None: no epoch
    initial_score: float | None = None  # CIDEr of the checkpoint that the run started from
    stage_best: tuple[float, float] = (-1.0, 0.0)  # highest score of the stage
    stale: int = 0  # epochs since stage_best
    log_bytes: int = 0  # length of the log


class StageState:
    """The optimizer, scheduler, averaged weights and loss sums of a stage of `steps` steps.

    The trained parameters of the model must require gradients.

    Attributes:
        config: the stage in the recipe.
        scaler: scales losses for float16; disabled otherwise.
        sums: sum of each training value over this process's steps of the epoch, by name.
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
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=recipe.precision == "float16")
        self.sums: dict[str, Tensor] = {}
        self._best: dict[str, Tensor] | None = None  # averaged weights for the next stage

    @property
    def is_out_of_patience(self) -> bool:
        """Whether the last `patience` epochs have brought no better score."""
        patience = self.config.patience
        return patience is not None and self.progress.stale >= patience

    @property
    def is_over(self) -> bool:
        """Whether the stage has taken all its steps, or is out of patience."""
        progress = self.progress
        # A dry run may end inside an epoch, which is still validated.
        all_taken = progress.step == 0 and progress.taken >= self.steps
        return progress.epoch >= self.config.epochs or all_taken or self.is_out_of_patience

    def count_step(self, values: Mapping[str, Tensor]) -> None:
        """Count a step and add up the values that it returned."""
        self.sums = {name: self.sums.get(name, 0) + value for name, value in values.items()}
        self.progress.step += 1
        self.progress.taken += 1
        self.progress.total += 1

    def count_epoch(self, cider: float, cross_entropy: float, *, has_cider: bool = True) -> bool:
        """Count an epoch and its scores; return whether it is the best of the run.

        The model must have the averaged weights. Without `has_cider`, the validation split is too
        small for CIDEr, and only the cross-entropy decides.
        """
        progress, score = self.progress, (cider, -cross_entropy)
        progress.epoch, progress.step = progress.epoch + 1, 0
        self.sums = {}
        progress.stale += 1
        best_of_stage = _is_better(score, progress.stage_best, has_cider=has_cider)
        if best_of_stage:
            progress.stage_best, progress.stale = score, 0
        if best_of_stage or self.config.carry_over == "last":
            self._best = {
                name: parameter.detach().clone()
                for name, parameter in self.model.named_parameters()
                if parameter.requires_grad
            }
        best = _is_better(score, progress.best, has_cider=has_cider)
        if best:
            progress.best, progress.best_at = score, (progress.stage + 1, progress.epoch)
        return best

    def end(self) -> None:
        """Load the weights of the epoch that `carry_over` selects, for the next stage."""
        if self._best is not None:
            self.model.load_state_dict(self._best, strict=False)
        progress, fresh = self.progress, Progress()
        progress.stage += 1
        progress.epoch = progress.step = progress.taken = progress.stale = 0
        progress.stage_best = fresh.stage_best

    def state_dict(self) -> dict[str, Any]:
        """Return the state that all processes share: everything except the sums."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "average": self.average.state_dict(),
            "scaler": self.scaler.state_dict(),
            "best": self._best,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` that was saved in the same stage of the recipe."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.average.load_state_dict(state["average"])
        self.scaler.load_state_dict(state["scaler"])
        self._best = state["best"]


def _is_better(score: tuple[float, float], best: tuple[float, float], *, has_cider: bool) -> bool:
    """Whether CIDEr is higher, or is equal and cross-entropy is lower by more than rounding."""
    if has_cider or best[0] < 0:  # below 0: there is no score yet
        return score > (best[0], best[1] + _ROUNDING)
    return score[1] > best[1] + _ROUNDING


class TrainState:
    """A model in training.

    Attributes:
        progress: counters and scores.
        stage: the current stage; None between two stages.
        conditions_before: the Processes.conditions of the run that is resumed; None: a new run.
    """

    def __init__(self, model: CaptionModel, *, processes: Processes) -> None:
        self.model, self.processes = model, processes
        self.progress = Progress()
        self.stage: StageState | None = None
        self.conditions_before: str | None = None
        self._loaded: Mapping[str, Any] | None = None  # state to restore when its stage begins

    def begin_stage(self, recipe: Recipe, *, steps: int) -> StageState:
        """Begin a stage, or continue the stage of the loaded state."""
        stage = self.stage = StageState(self.model, self.progress, recipe, steps=steps)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            if loaded["stage"] is not None:
                stage.load_state_dict(loaded["stage"])
            if loaded["processes"] is not None:
                stage.sums = self._restore_process(loaded["processes"])
        return stage

    def end_stage(self) -> None:
        """Carry the stage's weights over to the next one."""
        if self.stage is not None:
            self.stage.end()
        self.stage = None

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, with the random states and sums of all processes.

        Raises GenerationError: the weights are NaN or infinite.
        """
        sums = self.stage.sums if self.stage is not None else {}
        mine = {
            "random": _random(self.processes.device),
            "sums": {name: value.cpu() for name, value in sums.items()},
        }
        of_processes = self.processes.gather(mine)
        weights = self.model.state_dict()
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise diverged(self.progress.total)
        return {
            "progress": asdict(self.progress),
            "model": weights,
            "stage": None if self.stage is None else self.stage.state_dict(),
            "processes": of_processes,
            "conditions": self.processes.conditions,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore progress and weights; `begin_stage` later restores the stage."""
        self.progress = Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        self.conditions_before = state["conditions"]
        self._loaded = state

    def _restore_process(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Restore this process's random state and return its sums.

        If the number of processes has changed, the main process gets all sums and the random
        states are dropped.
        """
        device = self.processes.device
        if len(states) == self.processes.world:
            mine = states[self.processes.rank]
            torch.set_rng_state(mine["random"]["torch"])
            if device.type == "cuda" and mine["random"]["cuda"] is not None:
                torch.cuda.set_rng_state(mine["random"]["cuda"], device)
            sums = mine["sums"]
        else:
            share = 1 if self.processes.main else 0
            sums = {
                name: share * sum(state["sums"][name] for state in states)
                for name in states[0]["sums"]
            }
        return {name: value.to(device) for name, value in sums.items()}


def _random(device: torch.device) -> dict[str, Tensor | None]:
    """Return the random states of this process that training uses."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"torch": torch.get_rng_state(), "cuda": cuda}


def diverged(step: int) -> GenerationError:
    """Return the error of a run whose weights or losses are not finite."""
    return GenerationError(
        f"the weights became NaN or infinite by step {step}: start again in another --out with a "
        "lower learning_rate, or with --precision float32"
    )
