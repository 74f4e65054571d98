"""Build the objectives of a stage by their names in the recipe."""

from __future__ import annotations

from typing import Any

from captioner.errors import CaptionerError, ConfigError
from captioner_training.data.captions import Corpus
from captioner_training.losses.attention import AttentionEntropy, DoublyStochastic
from captioner_training.losses.objective import CrossEntropy, Objective, SamplingObjective
from captioner_training.losses.self_critical import SelfCriticalCaptions
from captioner_training.recipe import Recipe, Stage, import_class

# The classes behind the fields of a stage.
_FIELDS: dict[str, type[Objective]] = {
    "self_critical": SelfCriticalCaptions,
    "doubly_stochastic": DoublyStochastic,
    "attention_entropy": AttentionEntropy,
}
_CLASSES: dict[str, type[Objective]] = {"cross_entropy": CrossEntropy, **_FIELDS}


def objective_classes(stage: Stage) -> dict[str, type[Objective]]:
    """Return the classes of a stage's objectives, by name. Raises ConfigError."""
    own = [name for name in stage.objectives if name not in _CLASSES]
    return _CLASSES | {name: import_class(name, Objective, field="objectives") for name in own}


def stage_objectives(recipe: Recipe, stage: Stage, corpus: Corpus) -> dict[str, Objective]:
    """Build the objectives of a stage, by name; the stage minimizes their sum."""
    critic = stage.self_critical
    weights = {"cross_entropy": 1.0 if critic is None else critic.cross_entropy}
    weights |= {name: getattr(stage, name) for name in _FIELDS}
    settings: dict[str, Any] = {name: weight for name, weight in weights.items() if weight}
    settings |= stage.objectives
    classes, objectives = objective_classes(stage), dict[str, Objective]()
    for name, setting in settings.items():
        try:
            objectives[name] = classes[name].build(setting, recipe, corpus)
        except CaptionerError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"objectives {name}: the setting {setting!r} is invalid ({error})"
            ) from error
    sampling = [name for name in objectives if isinstance(objectives[name], SamplingObjective)]
    if len(sampling) > 1:
        raise ConfigError(
            f"objectives {' and '.join(sampling)} both sample captions: use one per stage"
        )
    return objectives
