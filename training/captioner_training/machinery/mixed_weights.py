"""Weights on the way from where a run began to where it has come.

On the line from a model to what fine-tuning has made of it lie models that work as well; those
before its end know the training data less by heart (Wortsman et al. 2022, "Robust fine-tuning of
zero-shot models").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["mixed"]


@contextmanager
def mixed(module: nn.Module, first: Mapping[str, Tensor], *, share: float) -> Iterator[None]:
    """Let the parameters that are trained have a share of their first values for a while.

    Args:
        module: whose parameters change.
        first: the first values by the names of parameters; the others stay as they are.
        share: of the first values, from 0 to 1.

    """
    kept: dict[nn.Parameter, Tensor] = {}
    for name, parameter in module.named_parameters():
        if share > 0 and name in first and parameter.requires_grad:
            kept[parameter] = parameter.data
            parameter.data = torch.lerp(parameter.data, first[name].to(parameter.device), share)
    try:
        yield
    finally:
        for parameter, data in kept.items():
            parameter.data = data
