"""An exponential moving average of the weights: steadier than the weights of the last step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["AveragedWeights"]


class AveragedWeights:
    """The average of what a stage trains (Polyak and Juditsky 1992, with exponential weights).

    Args:
        module: whose trained parameters are averaged, from their present values on.
        decay: of what is averaged already, at each update. The first updates use
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
