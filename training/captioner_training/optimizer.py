"""The optimizer of a stage, its learning rate schedule, and the average of its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from captioner.model.model import CaptionModel
from captioner_training.recipe import Recipe, Stage


def build_optimizer(model: CaptionModel, recipe: Recipe, stage: Stage) -> AdamW:
    """Return AdamW for the trained parameters of a stage.

    The encoder has its own learning rate. Weight decay applies to matrices only.
    """
    groups = []
    for module, rate in (
        (model.decoder, stage.learning_rate),
        (model.encoder, stage.encoder_rate),
    ):
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for decay, parameters in (
            (recipe.weight_decay, [p for p in trained if p.ndim > 1]),
            (0.0, [p for p in trained if p.ndim <= 1]),
        ):
            if parameters:
                groups.append({"params": parameters, "lr": rate, "weight_decay": decay})
    # The usual epsilon of 1e-8 would amplify rounding errors of almost zero gradients, so that runs
    # on two machines would drift apart.
    return AdamW(groups, betas=(0.9, 0.98), eps=1e-6, fused=True)


def build_scheduler(optimizer: AdamW, stage: Stage, *, steps: int, taken: int = 0) -> LambdaLR:
    """Return the schedule of a stage after `taken` steps: linear warm-up, then half a cosine."""
    rate = partial(warmup_cosine, steps=steps, warmup=min(stage.warmup, steps // 2))
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return LambdaLR(optimizer, rate, last_epoch=taken - 1)


def warmup_cosine(step: int, *, steps: int, warmup: int, floor: float = 0.01) -> float:
    """Return the share of the peak learning rate at a step, counted from 0."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


class AveragedWeights:
    """The exponential moving average of a module's trained parameters (Polyak and Juditsky 1992).

    The average starts at the current values. Update n decays it by min(decay, (1 + n) / (10 + n)),
    so that short runs forget the start. A decay of 0 turns averaging off.
    """

    def __init__(self, module: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self._trained = {
            name: parameter for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }  # fmt: skip
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
        if self.decay == 0:
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._trained.items():
            parameter.data, self._average[name] = self._average[name], parameter.data

    def state_dict(self) -> dict[str, Any]:
        """Return the averages by parameter name, and the number of updates."""
        return {"updates": self.updates, "average": dict(self._average)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict` that was saved in the same stage of the recipe."""
        self.updates = state["updates"]
        for name, average in self._average.items():
            average.copy_(state["average"][name])
