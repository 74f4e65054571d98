"""The state of a run: everything that is needed to resume it exactly.

The optimizer of a stage, its learning rate schedule, and the average of its weights are here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from captioner.errors import GenerationError
from captioner.model.model import CaptionModel
from captioner_training.distributed import Processes
from captioner_training.recipe import Recipe, Stage

_STATEFUL = ("optimizer", "scheduler", "average", "scaler")  # parts of a stage
_ROUNDING = 1e-5  # nats per token: smaller differences of cross-entropy are rounding errors


class Score(NamedTuple):
    """The scores on validation that decide which epoch is better."""

    cider: float
    cross_entropy: float  # decides between epochs of equal CIDEr

    def is_better(self, other: Score | None, *, has_cider: bool = True) -> bool:
        """Whether CIDEr is higher, or is equal and cross-entropy is lower by more than rounding.

        Without `has_cider`, the validation split is too small for CIDEr, and only the cross-entropy
        decides.
        """
        if other is None:
            return True
        if has_cider and self.cider != other.cider:
            return self.cider > other.cider
        return self.cross_entropy < other.cross_entropy - _ROUNDING


@dataclass(kw_only=True)
class Progress:
    """Counters and scores of a run, as of the last step."""

    stage: int = 0  # stage, epoch and step count from 0; messages count from 1
    epoch: int = 0  # epoch of the stage
    step: int = 0  # step of the epoch
    stage_step: int = 0  # steps taken in the stage
    global_step: int = 0  # steps taken in the run
    best: Score | None = None  # of the run
    best_at: tuple[int, int] | None = None  # stage and epoch of `best`, from 1; None: no epoch
    initial_score: float | None = None  # CIDEr of the checkpoint that the run started from
    stage_best: Score | None = None
    epochs_without_improvement: int = 0  # since stage_best
    log_bytes: int = 0  # length of the log

    def state_dict(self) -> dict[str, Any]:
        """Return plain values, which torch.load reads with weights_only=True."""
        values = asdict(self)
        return {name: tuple(x) if isinstance(x, tuple) else x for name, x in values.items()}

    @classmethod
    def from_state(cls, values: Mapping[str, Any]) -> Progress:
        """Restore a `state_dict`."""
        scores = {name: values[name] and Score(*values[name]) for name in ("best", "stage_best")}
        return cls(**{**values, **scores})


class StageState:
    """The optimizer, scheduler, averaged weights and loss sums of a stage of `steps` steps.

    The scaler is for float16. `sums` has the sum of each training value over this process's steps
    of the epoch, by name.
    """

    def __init__(
        self, model: CaptionModel, progress: Progress, recipe: Recipe, *, steps: int
    ) -> None:
        self.model, self.progress, self.steps = model, progress, steps
        self.config = recipe.stages[progress.stage]
        self.optimizer = build_optimizer(model, recipe, self.config)
        self.scheduler = build_scheduler(
            self.optimizer, self.config, steps=steps, step=progress.stage_step
        )
        self.average = AveragedWeights(model, decay=recipe.ema)
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=recipe.precision == "float16")
        self.sums: dict[str, Tensor] = {}
        self._best: dict[str, Tensor] | None = None  # averaged weights for the next stage

    @property
    def is_out_of_patience(self) -> bool:
        """Whether the last `patience` epochs have brought no better score."""
        return self.progress.epochs_without_improvement >= (self.config.patience or math.inf)

    @property
    def is_over(self) -> bool:
        """Whether the stage has taken all its steps, or is out of patience."""
        # A dry run may end inside an epoch, which is still validated.
        all_taken = self.progress.step == 0 and self.progress.stage_step >= self.steps
        return all_taken or self.is_out_of_patience

    def count_step(self, values: Mapping[str, Tensor]) -> None:
        """Count a step and add up the values that it returned."""
        self.sums = {name: self.sums.get(name, 0) + value for name, value in values.items()}
        self.progress.step += 1
        self.progress.stage_step += 1
        self.progress.global_step += 1

    def count_epoch(self, score: Score, *, has_cider: bool = True) -> bool:
        """Count an epoch of the averaged weights; return whether it is the best of the run."""
        progress = self.progress
        progress.epoch, progress.step = progress.epoch + 1, 0
        self.sums = {}
        progress.epochs_without_improvement += 1
        best_of_stage = score.is_better(progress.stage_best, has_cider=has_cider)
        if best_of_stage:
            progress.stage_best, progress.epochs_without_improvement = score, 0
        if best_of_stage or self.config.carry_over == "last":
            self._best = {
                name: parameter.detach().clone()
                for name, parameter in self.model.named_parameters()
                if parameter.requires_grad
            }
        best = score.is_better(progress.best, has_cider=has_cider)
        if best:
            progress.best, progress.best_at = score, (progress.stage + 1, progress.epoch)
        return best

    def end(self) -> None:
        """Load the weights of the epoch that `carry_over` selects, for the next stage."""
        if self._best is not None:
            self.model.load_state_dict(self._best, strict=False)
        progress = self.progress
        progress.stage += 1
        progress.epoch = progress.step = progress.stage_step = 0
        progress.stage_best, progress.epochs_without_improvement = None, 0

    def state_dict(self) -> dict[str, Any]:
        """Return what all processes share."""
        parts = {name: getattr(self, name).state_dict() for name in _STATEFUL}
        return {**parts, "best": self._best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` that was saved in the same stage of the recipe."""
        for name in _STATEFUL:
            getattr(self, name).load_state_dict(state[name])
        self._best = state["best"]


class TrainState:
    """A model in training; `stage` is None between two stages."""

    def __init__(self, model: CaptionModel, *, processes: Processes) -> None:
        self.model, self.processes = model, processes
        self.progress = Progress()
        self.stage: StageState | None = None
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

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state. Raises GenerationError: the weights are NaN or infinite."""
        stage, device = self.stage, self.processes.device
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        sums = {} if stage is None else {name: value.cpu() for name, value in stage.sums.items()}
        mine = {"random": {"torch": torch.get_rng_state(), "cuda": cuda}, "sums": sums}
        of_processes = self.processes.gather(mine)
        weights = self.model.state_dict()
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise diverged(self.progress.global_step)
        return {
            "progress": self.progress.state_dict(),
            "model": weights,
            "stage": stage and stage.state_dict(),
            "processes": of_processes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore progress and weights; `begin_stage` later restores the stage."""
        self.progress = Progress.from_state(state["progress"])
        self.model.load_state_dict(state["model"])
        self._loaded = state

    def _restore_process(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Restore this process's random state and return its sums.

        For another number of processes, the main process gets all sums; random states are dropped.
        """
        device, count = self.processes.device, len(states)
        if count == self.processes.world:
            states = [states[self.processes.rank]]
            random = states[0]["random"]
            torch.set_rng_state(random["torch"])
            if device.type == "cuda" and random["cuda"] is not None:
                torch.cuda.set_rng_state(random["cuda"], device)
        share = int(count == self.processes.world or self.processes.main)
        return {
            name: share * torch.stack([state["sums"][name].to(device) for state in states]).sum()
            for name in states[0]["sums"]
        }


def diverged(step: int) -> GenerationError:
    """Return the error of a run whose weights or losses are not finite."""
    return GenerationError(
        f"the weights became NaN or infinite by step {step}: start again in another --out with a "
        "lower learning_rate, or with --precision float32"
    )


def build_optimizer(model: CaptionModel, recipe: Recipe, stage: Stage) -> AdamW:
    """Return AdamW for the trained parameters of a stage. Only matrices have weight decay."""
    groups, slow = [], stage.encoder_learning_rate
    rates = (stage.learning_rate, 1e-4 if slow is None else slow)
    for module, rate in zip((model.decoder, model.encoder), rates, strict=True):
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for is_matrix, decay in ((True, recipe.weight_decay), (False, 0.0)):
            if parameters := [each for each in trained if (each.ndim > 1) is is_matrix]:
                groups.append({"params": parameters, "lr": rate, "weight_decay": decay})
    # The usual epsilon of 1e-8 would amplify rounding errors of almost zero gradients, so that runs
    # on two machines would drift apart.
    return AdamW(groups, betas=(0.9, 0.98), eps=1e-6, fused=True)


def build_scheduler(optimizer: AdamW, stage: Stage, *, steps: int, step: int = 0) -> LambdaLR:
    """Return the schedule of a stage after `step` steps: linear warm-up, then half a cosine."""
    warmup, floor = min(stage.warmup, steps // 2), 0.01

    def share(step: int) -> float:  # of the peak learning rate
        if step < warmup:
            return (step + 1) / warmup
        progress = min(1.0, (step - warmup) / max(1, steps - warmup))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return LambdaLR(optimizer, share, last_epoch=step - 1)


class AveragedWeights:
    """The exponential moving average of a module's trained parameters (Polyak and Juditsky 1992).

    The average starts at the current values. Update n decays it by min(decay, (1 + n) / (10 + n)),
    so that short runs forget the start. A decay of 0 turns averaging off.
    """

    def __init__(self, module: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        named = module.named_parameters()
        self._trained = {name: parameter for name, parameter in named if parameter.requires_grad}
        self._average = {
            name: parameter.detach().clone() for name, parameter in self._trained.items() if decay
        }

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current weights."""
        if self.decay == 0:
            return
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(list(self._average.values()), list(self._trained.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the module the averaged weights until the block ends.

        Then the weights have their former addresses again, as CUDA graphs require.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name in self._average:
            parameter = self._trained[name]
            parameter.data, self._average[name] = self._average[name], parameter.data

    def state_dict(self) -> dict[str, Any]:
        """Return the averages by parameter name, and the number of updates."""
        return {"updates": self.updates, "average": dict(self._average)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        self.updates = state["updates"]
        for name, average in self._average.items():
            average.copy_(state["average"][name])
