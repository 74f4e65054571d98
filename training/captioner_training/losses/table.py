"""The objectives by their names in a recipe, and those of a stage."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

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
        ConfigError: there is no objective of a name, or its setting is not what it takes.
        CaptionerError: the data are not as one needs them.

    """
    critic = stage.self_critical
    weight = 1.0 if critic is None else critic.cross_entropy
    found: list[Objective] = []
    if weight > 0:
        found.append(CrossEntropy(weight, label_smoothing=recipe.label_smoothing))
    for name, kind in OBJECTIVES.items():
        if setting := getattr(stage, name):
            found.append(kind.build(setting, recipe, corpus))
    for name, setting in stage.objectives.items():
        kind = _find(name)
        try:
            found.append(kind.build(setting, recipe, corpus))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"objectives {name}: {setting!r} does not fit ({error})") from error
    return found


def _find(name: str) -> type[Objective]:
    """Find a class by module:Class, also of a file in the current folder."""
    module, colon, attribute = name.partition(":")
    if not colon:
        fields = f"; {name} is a field of the stage itself" if name in OBJECTIVES else ""
        raise ConfigError(f"objectives {name!r}: name module:Class{fields}")
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"objectives {name!r} cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Objective)):
        raise ConfigError(f"objectives {name!r} is no subclass of Objective")
    return kind
