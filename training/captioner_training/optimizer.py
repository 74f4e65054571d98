"""The optimizer of a stage, its learning rates over the steps, and the average of its weights."""

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

from captioner.model import CaptionModel
from captioner_training.recipe import Recipe, Stage

__all__ = ["AveragedWeights", "build_optimizer", "build_scheduler", "warmup_cosine"]


def build_optimizer(model: CaptionModel, recipe: Recipe, stage: Stage) -> AdamW:
    """AdamW over what the stage trains; the encoder at its own rate, matrices alone decayed."""
    groups = []
    for module, rate in (
        (model.decoder, stage.learning_rate),
        (model.encoder, stage.encoder_rate),
    ):
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for decay, chosen in (
            (recipe.weight_decay, [p for p in trained if p.ndim > 1]),
            (0.0, [p for p in trained if p.ndim <= 1]),
        ):
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": decay})
    # With the usual epsilon of 1e-8 a weight whose gradient is all but zero walks as far as any
    # other, in a direction that rounding decides: two machines would not agree on it.
    return AdamW(groups, betas=(0.9, 0.98), eps=1e-6, fused=True)


def build_scheduler(optimizer: AdamW, stage: Stage, *, steps: int, taken: int = 0) -> LambdaLR:
    """Warm-up and half a cosine over the steps of the stage, of which some may be taken already."""
    rate = partial(warmup_cosine, steps=steps, warmup=min(stage.warmup, steps // 2))
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return LambdaLR(optimizer, rate, last_epoch=taken - 1)


def warmup_cosine(step: int, *, steps: int, warmup: int, floor: float = 0.01) -> float:
    """Give the share of the peak rate at a step from 0; the first `warmup` of all climb to it."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


class AveragedWeights:
    """The average of what a stage trains (Polyak and Juditsky 1992, with exponential weights).

    It begins with the present values, and decays by `decay` at each update. The first updates use
    (1 + n) / (10 + n), so that a short run does not remember where it began.
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
        """Take in the weights of a step."""
        if self.decay == 0:
            return
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(list(self._average.values()), list(self._trained.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the module have the averaged weights for a while."""
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
            kept = parameter.data
            parameter.data = self._average[name]
            self._average[name] = kept

    def state_dict(self) -> dict[str, Any]:
        """Give the averages by the names of their parameters, and the number of updates."""
        return {"updates": self.updates, "average": dict(self._average)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state_dict of the same stage."""
        self.updates = state["updates"]
        for name, average in self._average.items():
            average.copy_(state["average"][name])
