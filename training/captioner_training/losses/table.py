"""The objectives by their names in a recipe, and those of a stage."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from captioner.errors import ConfigError
from captioner_training.data.corpus import Corpus
from captioner_training.losses.attention import (
    AttentionEntropy,
    AttentionSupervision,
    DoublyStochastic,
)
from captioner_training.losses.cross_entropy import CrossEntropy
from captioner_training.losses.objective import Objective
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.recipe import Recipe, Stage

__all__ = ["OBJECTIVES", "stage_objectives"]

OBJECTIVES: Final[dict[str, type[Objective]]] = {
    "self_critical": SelfCriticalCaptions,
    "doubly_stochastic": DoublyStochastic,
    "attention_entropy": AttentionEntropy,
    "attention_supervision": AttentionSupervision,
}
"""Beside the cross-entropy, which every stage has, if with a weight of its own."""


def stage_objectives(recipe: Recipe, stage: Stage, corpus: Corpus) -> list[Objective]:
    """Make the objectives of a stage; their sum is what it minimises.

    Raises:
        ConfigError: there is no objective of a name.
        CaptionerError: the data are not as one needs them.

    """
    critic = stage.self_critical
    weight = 1.0 if critic is None else critic.cross_entropy
    found: list[Objective] = []
    if weight > 0:
        found.append(CrossEntropy(weight, label_smoothing=recipe.label_smoothing))
    return found + [
        _find(name).build(setting, recipe, corpus) for name, setting in _asked(stage) if setting
    ]


def _asked(stage: Stage) -> Iterator[tuple[str, Any]]:
    for name in OBJECTIVES:
        yield name, getattr(stage, name, None)
    yield from stage.objectives.items()


def _find(name: str) -> type[Objective]:
    module, colon, attribute = name.partition(":")
    try:
        kind = getattr(import_module(module), attribute) if colon else OBJECTIVES[name]
    except (ImportError, AttributeError, KeyError) as error:
        raise ConfigError(
            f"objective {name!r} is not known: name module:Class, or one of {', '.join(OBJECTIVES)}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Objective)):
        raise ConfigError(f"objective {name!r} is no subclass of Objective")
    return kind
