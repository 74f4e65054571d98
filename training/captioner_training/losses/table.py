"""Build the objectives of a stage by their names in the recipe."""

from __future__ import annotations

from typing import Any

import yaml

from captioner.errors import CaptionerError, ConfigError
from captioner_training.data.corpus import Corpus
from captioner_training.losses.objective import Objective, SamplingObjective
from captioner_training.recipe import Recipe, Stage, import_class

_LOSSES = "captioner_training.losses"
# The classes behind the fields of a stage.
_FIELDS = {
    "self_critical": f"{_LOSSES}.self_critical:SelfCriticalCaptions",
    "doubly_stochastic": f"{_LOSSES}.attention:DoublyStochastic",
    "attention_entropy": f"{_LOSSES}.attention:AttentionEntropy",
}
_PATHS: dict[str, str] = {"cross_entropy": f"{_LOSSES}.cross_entropy:CrossEntropy", **_FIELDS}


def objective_classes(stage: Stage) -> dict[str, type[Objective]]:
    """Import the classes of a stage's objectives, by name. Raises ConfigError."""
    names = [*_PATHS, *(name for name in stage.objectives if name not in _PATHS)]
    return {
        name: import_class(_PATHS.get(name, name), Objective, field="objectives") for name in names
    }


def stage_objectives(recipe: Recipe, stage: Stage, corpus: Corpus) -> dict[str, Objective]:
    """Build the objectives of a stage, by name; the stage minimizes their sum.

    Raises CaptionerError: an objective does not exist, or does not fit its setting or the data.
    """
    critic = stage.self_critical
    weights = {"cross_entropy": 1.0 if critic is None else critic.cross_entropy}
    weights |= {name: getattr(stage, name) for name in _FIELDS}
    settings: dict[str, Any] = {name: weight for name, weight in weights.items() if weight}
    settings |= {name: _typed(setting) for name, setting in stage.objectives.items()}
    classes, objectives = objective_classes(stage), dict[str, Objective]()
    for name, setting in settings.items():
        try:
            objectives[name] = classes[name].build(setting, recipe, corpus)
        except CaptionerError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"objectives {name}: the setting {setting!r} is invalid ({error})"
            ) from error
        if not isinstance(objectives[name], Objective):
            raise ConfigError(f"objectives {name}: build() must return an Objective")
    sampling = [name for name in objectives if isinstance(objectives[name], SamplingObjective)]
    if len(sampling) > 1:
        raise ConfigError(
            f"objectives {' and '.join(sampling)} both sample captions: use one per stage"
        )
    return objectives


def _typed(setting: Any) -> Any:
    """Convert strings in a setting to numbers and booleans, as YAML does."""
    if isinstance(setting, dict):
        return {name: _typed(value) for name, value in setting.items()}
    if isinstance(setting, list):
        return [_typed(value) for value in setting]
    return yaml.safe_load(setting) if isinstance(setting, str) else setting
