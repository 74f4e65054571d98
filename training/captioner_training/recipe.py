"""Recipes: everything that decides a training run, in one typed YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from captioner.decoders.config import DecoderConfig
from captioner.encoder import EncoderConfig
from captioner.errors import ConfigError
from captioner.generation.config import GenerationConfig
from captioner.transforms import TransformConfig

__all__ = [
    "DataConfig",
    "Recipe",
    "ScenesConfig",
    "SelfCritical",
    "Source",
    "Stage",
    "load_recipe",
    "shipped_recipes",
]

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A split in COCO's captions format whose files are named one by one.

    Relative paths start at DataConfig.root.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    captions: str  # the json file
    images: str  # a folder, a tar file, or a glob of them


@dataclass(frozen=True, kw_only=True)
class ScenesConfig:
    """Drawn scenes in place of a data set: no download, and the right answer is known."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    train: int = 3000
    validation: int = 300


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained and validated on."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    root: str = "."  # where the data set lies on this machine; `--data.root DIR` on the command
    # A data set is one folder, prepared or not (see dataset.read_dataset), of which the split
    # `train` or `val` is read; or its files by name.
    train: tuple[str | Source, ...] = ()
    validation: tuple[str | Source, ...] = ()
    scenes: ScenesConfig | None = None  # instead of train and validation
    minimum_count: int = 5  # rarer words become <unk>: too few examples to learn from
    maximum_length: int = 22  # words a caption; longer ones are cut, they are few and slow
    workers: int = 2  # processes that decode images; no more than there are cores

    def __post_init__(self) -> None:
        if (self.scenes is None) == (not self.train or not self.validation):
            raise ConfigError("data needs either scenes, or both train and validation")


@dataclass(frozen=True, kw_only=True)
class SelfCritical:
    """Self-critical sequence training (Rennie et al. 2017); see scst.py."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    samples: int = 5  # captions drawn an image
    # The policy is the softmax of scores / temperature. Label smoothing has left a tenth of the
    # probability on words that make no sense; drawn at 1, most samples would have one of them.
    temperature: float = 0.5
    # What a sample's reward is compared with: the mean of the image's other samples (Luo 2020), or
    # the reward of the greedy caption (Rennie et al. 2017).
    baseline: Literal["mean", "greedy"] = "mean"

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature {self.temperature} is not positive")
        if self.samples < (2 if self.baseline == "mean" else 1):
            raise ConfigError(f"samples {self.samples} are too few for a baseline {self.baseline}")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the training with its own learning rates."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    epochs: int
    batch_size: int = 64  # images of all processes together, each with all its captions
    learning_rate: float = 1e-3  # of the decoder, at its peak
    encoder_learning_rate: float = 1e-4  # small: the encoder knows images already
    fine_tune_from: int | None = None  # first encoder stage that is trained; None: grids are cached
    warmup: int = 200  # steps; Adam's second moments need them
    flip: bool = False  # mirror images whose captions do not tell left from right
    crop: float = 0.0  # the largest share of a side that a random crop cuts away
    doubly_stochastic: float = 0.05  # asks the words to look at different cells; see loss.py
    attention_entropy: float = 0.03  # asks every word to look at few cells; see loss.py
    accumulate: int = 1  # parts that a batch is computed in, one after the other: less memory
    # The share of words, at the end of the stage, that are the model's own and not the caption's.
    scheduled_sampling: float = 0.0  # see step.py; 0.1 to 0.25 is usual
    patience: int | None = None  # epochs without a better validation CIDEr that end the stage
    self_critical: SelfCritical | None = None  # learn from CIDEr-D of sampled captions instead

    def __post_init__(self) -> None:
        checks = {
            "epochs": self.epochs >= 1,
            "batch_size": self.batch_size >= 1,
            "warmup": self.warmup >= 0,
            "crop": 0 <= self.crop < 1,
            "accumulate": self.accumulate >= 1,
            "scheduled_sampling": 0 <= self.scheduled_sampling <= 1,
            "patience": self.patience is None or self.patience >= 1,
        }
        if bad := [f"{name} {getattr(self, name)}" for name, good in checks.items() if not good]:
            raise ConfigError(f"out of range: {', '.join(bad)}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: str
    data: DataConfig
    stages: tuple[Stage, ...]
    # "bundled" (the encoder inside the bundled checkpoint), "torchvision", "random", or the path
    # of a safetensors file: a Captioner checkpoint or the backbone's stages.
    encoder_weights: str = "bundled"
    # A Captioner checkpoint to go on from ("bundled" or a path), decoder included; words it lacks
    # start afresh. It takes the place of encoder_weights, and must have the recipe's architecture.
    weights: str | None = None
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    transform: TransformConfig = field(default_factory=TransformConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    stochastic_depth: float | None = None  # of the encoder's blocks in training; None: its own
    seed: int = 1
    precision: Literal["bf16", "float32"] = "bf16"  # of autocast; weights stay float32
    weight_decay: float = 0.02  # AdamW's; matrices only
    gradient_clip: float = 1.0  # norm; recurrent gradients burst now and then
    label_smoothing: float = 0.1
    ema: float = 0.999  # of the averaged weights that are validated and kept; 0: no average
    # How the checkpoint makes its captions, in validation and wherever it is used later.
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    compile: bool = False  # torch.compile for the encoder: see docs/training.md for where it pays
    tensorboard: bool = False  # write event files for TensorBoard into DIR/tensorboard
    log_every: int = 50  # steps between two lines of the log
    save_every_minutes: float = 10.0  # between two states; one is saved after every epoch too
    save_every_steps: int | None = None
    keep_states: int = 2  # the newest; each holds weights, their average, and two moments
    max_steps: int | None = None  # stop after so many steps, for a dry run

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("a recipe needs at least one stage")
        checks = {
            "ema": 0 <= self.ema < 1,
            "label_smoothing": 0 <= self.label_smoothing < 1,
            "gradient_clip": self.gradient_clip > 0,
            "log_every": self.log_every >= 1,
            "save_every_minutes": self.save_every_minutes > 0,
            "save_every_steps": self.save_every_steps is None or self.save_every_steps >= 1,
            "keep_states": self.keep_states >= 1,
            "max_steps": self.max_steps is None or self.max_steps >= 1,
        }
        if bad := [f"{name} {getattr(self, name)}" for name, good in checks.items() if not good]:
            raise ConfigError(f"out of range: {', '.join(bad)}")


def shipped_recipes() -> list[str]:
    """The names of the recipes that come with Captioner."""
    folder = files("captioner_training") / "recipes"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if ".yaml" in entry.name)


def load_recipe(name: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read a shipped recipe by its name, or a YAML file, and set single fields anew.

    Args:
        name: "flickr8k", say, or a path that ends in .yaml or .yml.
        overrides: dotted field names and YAML values: {"stages.0.epochs": "3"}.

    Raises:
        ConfigError: no such recipe, not YAML, or fields that do not fit: all of them at once.

    """
    values = _read(name)
    problems = [
        problem for key, text in (overrides or {}).items() if (problem := _set(values, key, text))
    ]
    recipe = None
    try:
        recipe = TypeAdapter(Recipe).validate_python(values)
    except ValidationError as error:
        problems += [_sentence(dict(one)) for one in error.errors()]
    if problems or recipe is None:
        raise ConfigError(f"recipe {name} cannot be used:\n  " + "\n  ".join(problems))
    return recipe


def _read(name: str) -> dict[str, Any]:
    if name.endswith((".yaml", ".yml")):
        source = Path(name)
    elif name in shipped_recipes():
        source = Path(str(files("captioner_training") / "recipes" / f"{name}.yaml"))
    else:
        raise ConfigError(
            f"there is no recipe {name!r}: name a .yaml file, or one of "
            f"{', '.join(shipped_recipes())}"
        )
    try:
        values = yaml.safe_load(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"recipe {source} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {source} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"recipe {source} is not a YAML mapping of fields to values")
    values.setdefault("name", source.stem)
    return values


def _set(values: dict[str, Any], key: str, text: str) -> str | None:
    """Set one dotted field; return what is wrong with it, if anything."""
    *path, last = key.split(".")
    target: Any = values
    for part in path:
        if isinstance(target, list) and part.isdigit() and int(part) < len(target):
            target = target[int(part)]
        elif isinstance(target, dict):
            target = target.setdefault(part, {})
        else:
            return f"{key}: there is no such field"
    if not isinstance(target, dict):
        return f"{key}: there is no such field"
    try:
        target[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        target[last] = text
    return None


def _sentence(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"]) or "recipe"
    given = error.get("input")
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{place}: {error['msg']}{shown}"


def resolve(root: str, path: str) -> Path:
    """Place a data path of a recipe on this machine."""
    return Path(root).expanduser() / Path(path).expanduser()
