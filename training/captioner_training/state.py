"""The state of a run: all that is needed to go on as if it had never stopped, in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from captioner.errors import GenerationError
from captioner.model import CaptionModel
from captioner_training.distributed import Processes
from captioner_training.optimizer import AveragedWeights, build_optimizer, build_scheduler
from captioner_training.progress import Progress, is_better
from captioner_training.recipe import Recipe, Stage

__all__ = ["TrainState", "diverged"]

_SUMS = 4  # what a step returns: loss, cross-entropy, reward, norm of the gradient


class TrainState:
    """A model in training: its weights, what its stage remembers, and how far the run is.

    Args:
        model: on the device of this process.
        processes: of the run; each has random numbers and sums of its own.

    """

    optimizer: AdamW
    scheduler: LambdaLR
    average: AveragedWeights
    sums: Tensor  # (4,), on the device: of what the steps of this epoch returned
    steps: int  # of the whole stage

    def __init__(self, model: CaptionModel, *, processes: Processes) -> None:
        self.model, self.processes = model, processes
        self.progress = Progress()
        self._handed_on: dict[str, Tensor] | None = None  # averaged: of the stage's best or last
        self._hands_on_last = False
        self._in_stage = False
        self._loaded: Mapping[str, Any] | None = None  # until its stage begins

    def begin_stage(self, recipe: Recipe, stage: Stage, *, steps: int) -> None:
        """Make what a stage remembers; after `load_state_dict`, as it was when it was saved.

        Args:
            recipe: of the run.
            stage: what it trains is thawed already.
            steps: of the whole stage.

        """
        self.steps, self._in_stage = steps, True
        self._hands_on_last = stage.hand_on == "last"
        self.optimizer = build_optimizer(self.model, recipe, stage)
        self.scheduler = build_scheduler(
            self.optimizer, stage, steps=steps, taken=self.progress.taken
        )
        self.average = AveragedWeights(self.model, decay=recipe.ema)
        self.sums = torch.zeros(_SUMS, device=self.processes.device)
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        if (remembered := loaded["stage"]) is not None:
            self.optimizer.load_state_dict(remembered["optimizer"])
            self.scheduler.load_state_dict(remembered["scheduler"])
            self.average.load_state_dict(remembered["average"])
            self._handed_on = remembered["best"]
        self._restore_processes(loaded["processes"])

    def end_stage(self) -> None:
        """Hand on the weights of the epoch that `hand_on` names to the next stage."""
        if self._handed_on is not None:
            device = self.processes.device
            weights = {name: tensor.to(device) for name, tensor in self._handed_on.items()}
            self.model.load_state_dict(weights, strict=False)
        self._handed_on, self._in_stage = None, False
        progress = self.progress
        progress.last_epoch, progress.stage = progress.epoch, progress.stage + 1
        progress.epoch = progress.step = progress.taken = 0
        progress.stage_best, progress.stage_surprise, progress.stale = -1.0, None, 0

    def stage_is_over(self, stage: Stage) -> bool:
        """Whether the stage has had its steps, or has not become better for long enough."""
        progress = self.progress
        if self.is_out_of_patience(stage):
            return True
        # A dry run's steps may end inside an epoch, which is validated like any other.
        dry = progress.step == 0 and progress.taken >= self.steps
        return progress.epoch >= stage.epochs or dry

    def is_out_of_patience(self, stage: Stage) -> bool:
        """Whether as many epochs as the stage allows have brought no better score."""
        return stage.patience is not None and self.progress.stale >= stage.patience

    def count_step(self, values: Tensor) -> None:
        """Take down a step: the (4,) values that it returned."""
        self.sums += values
        self.progress.step += 1
        self.progress.taken += 1
        self.progress.total += 1

    def means(self) -> Tensor:
        """Give the means (4,) of what the steps of the epoch returned, over all processes."""
        return self.processes.sum(self.sums.clone()) / max(1, self.progress.step)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the model have the averaged weights, which are validated and kept, for a while."""
        with self.average.applied():
            yield

    def count_epoch(self, cider: float, surprise: float) -> bool:
        """Record an epoch, inside `averaged`; say whether it is the best of the run.

        Args:
            cider: on validation.
            surprise: the cross-entropy there, which decides between equal ones.

        """
        progress = self.progress
        progress.epoch, progress.step = progress.epoch + 1, 0
        self.sums.zero_()
        progress.stale += 1
        best_of_stage = is_better(
            cider, surprise, than=progress.stage_best, with_surprise=progress.stage_surprise
        )
        if best_of_stage:
            progress.stage_best, progress.stage_surprise, progress.stale = cider, surprise, 0
        if best_of_stage or self._hands_on_last:
            self._handed_on = {
                name: parameter.detach().clone()
                for name, parameter in self.model.named_parameters()
                if parameter.requires_grad
            }
        best = is_better(cider, surprise, than=progress.best, with_surprise=progress.best_surprise)
        if best:
            progress.best, progress.best_surprise = cider, surprise
            progress.best_at = (progress.stage + 1, progress.epoch)
        return best

    def state_dict(self) -> dict[str, Any]:
        """Give all of it. Every process calls this; each adds its random numbers and its sums.

        Raises:
            GenerationError: the weights are NaN or infinite.

        """
        mine = {
            "random": _random(self.processes.device),
            "sums": self.sums.cpu() if self._in_stage else torch.zeros(_SUMS),
        }
        each = self.processes.gather(mine)
        weights = self.model.state_dict()
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise diverged(self.progress.total)
        stage = None
        if self._in_stage:
            stage = {
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "average": self.average.state_dict(),
                "best": self._handed_on,
            }
        return {
            "progress": asdict(self.progress),
            "model": weights,
            "stage": stage,
            "processes": each,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state_dict; what belongs to a stage waits for `begin_stage`."""
        self.progress = Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        self._loaded = state

    def _restore_processes(self, each: Sequence[Mapping[str, Any]]) -> None:
        """Give every process its own; of another number of processes, the sum is what counts."""
        if len(each) == self.processes.world:
            mine = each[self.processes.rank]
            torch.set_rng_state(mine["random"]["torch"])
            if self.processes.device.type == "cuda" and mine["random"]["cuda"] is not None:
                torch.cuda.set_rng_state(mine["random"]["cuda"], self.processes.device)
            self.sums.copy_(mine["sums"])
        elif self.processes.main:
            self.sums.copy_(torch.stack([one["sums"] for one in each]).sum(dim=0))


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
