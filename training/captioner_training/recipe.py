"""Recipes: all settings of a training run, from YAML files and the command line.

The text under a field describes it; `captioner train --fields` prints all of these texts.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Interval, MinLen
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from captioner.errors import ConfigError, DataError
from captioner.generation.config import GenerationConfig, Length
from captioner.model.config import DecoderConfig
from captioner.model.encoder import EncoderConfig
from captioner.model.scores import SCORES, ScoreFunction
from captioner.photos.transform import TransformConfig
from captioner.shared.paths import did_you_mean, expanded
from captioner.shared.settings import Fraction, NotNegative, Positive, PositiveFloat
from captioner.shared.tables import read_text
from captioner.vocabulary import Tokenizer, is_printable, tokenize

LONG_STAGE = 2000
"""Steps from which a stage is long enough for compiling and for the tuning of cuDNN."""

ANY_STYLE = "any"
"""The name of the style that DataConfig.any_style adds."""

Scenes = Annotated[int, Interval(ge=1, le=1_000_000)]
_FOLDER = Path(__file__).parent / "recipes"
_WIDTH = 96  # columns of a field's description
_CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class _Checked:
    """Refuses fields that contradict each other."""

    def __post_init__(self) -> None:
        if problems := list(self._contradictions()):
            raise ConfigError("; ".join(problems))

    def _contradictions(self) -> Iterator[str]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class ScenesConfig:
    """The number of synthetic scenes to use instead of a data set."""

    train: Scenes = 3000
    validation: Scenes = 300


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class DataConfig(_Checked):
    """The data sets, and how their captions become tokens."""

    root: str = "."
    """Folder that contains the data sets; their paths are relative to it."""
    train: tuple[str, ...] = ()
    """Folders of training sets; their split `train` is read."""
    validation: tuple[str, ...] = ()
    """Folders of validation sets; their split `val` is read."""
    scenes: ScenesConfig | None = None
    """Number of synthetic scenes to draw. They replace train and validation."""
    styles: bool = False
    """Learn a separate caption style from each training set, with a start token for each style. A
    style is named after the folder of its set. generation.style selects a style; the default is the
    style of the first set. A validation set is captioned in the style of the same name, if there is
    one, and otherwise in the default style."""
    any_style: Fraction = 0.0
    """Share of training images, drawn anew in every epoch, that train the additional style `any`
    instead of the style of their set. Above 0, `any` is the default style. Needs `data.styles:
    true`."""
    minimum_count: Positive = 5
    """Words that occur less often in the training captions become <unk>."""
    maximum_length: Length = 22
    """Longest caption in words; longer ones are cut."""
    tokenizer: Tokenizer = "words"
    """`words` for English, `unicode` for other languages with spaces between words, `characters`
    for languages without spaces, such as Chinese."""
    lowercase: bool = True
    """Convert captions to lower case; false for German, where nouns have capitals."""
    workers: Annotated[int, Ge(0)] | Literal["auto"] = "auto"
    """Number of processes that decode images, at most one per core. auto: the number of cores,
    divided by the number of training processes on the machine."""

    def _contradictions(self) -> Iterator[str]:
        if (self.scenes is None) == (not self.train or not self.validation):
            yield "data needs either scenes, or both train and validation"
        if not self.styles:
            if self.any_style > 0:
                yield "data.any_style needs data.styles: true"
            return
        if self.scenes is not None:
            yield "data.styles has no effect on scenes: leave it out"
        names = [self.style_of(folder) for folder in self.train]
        if len(set(names)) < len(names):
            yield "data.styles needs training folders with different names: rename one"
        if self.any_style > 0 and ANY_STYLE in names:
            yield f"data.any_style adds the style {ANY_STYLE}: rename the training set {ANY_STYLE}"

    def tokenize(self, caption: str) -> list[str]:
        """Split a caption into words."""
        return tokenize(caption, self.tokenizer, lowercase=self.lowercase)

    def style_of(self, folder: str) -> str:
        """Return the name of a folder, which is the style of its captions."""
        return resolve(self.root, folder).absolute().name


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class SelfCritical:
    """Self-critical sequence training (Rennie et al. 2017); see losses/self_critical.py."""

    samples: Annotated[int, Ge(2)] = 5
    """Captions sampled per image."""
    temperature: PositiveFloat = 0.5
    """Samples are drawn from softmax(scores / temperature). Label smoothing gives every word some
    probability; a temperature below 1 makes unsuitable words rare."""
    cross_entropy: NotNegative = 0.0
    """Weight of the cross-entropy of the data's captions, which is added to the self-critical loss
    (Wu et al. 2016, equation 9). It keeps word probabilities calibrated."""
    maximum_length: Length | None = None
    """Longest sample in words; null: data.maximum_length. It determines the time of a step on a
    GPU; on a CPU the longest sample of the batch does."""


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Stage(_Checked):
    """A stage of the training, with its own learning rates and losses."""

    epochs: Positive
    batch_size: Positive = 64
    """Images per step, summed over all processes. A step uses all captions of its images."""
    learning_rate: NotNegative = 1e-3
    """Peak learning rate of the decoder."""
    encoder_learning_rate: NotNegative | None = None
    """Peak learning rate of the encoder; null: 1e-4."""
    fine_tune_from: Annotated[int, Ge(0)] | None = None
    """First encoder stage that is trained; null: the encoder is frozen and its grids are cached."""
    warmup: Annotated[int, Ge(0)] = 200
    """Steps of linear warm-up."""
    flip: bool = False
    """Mirror half of the images, except those whose captions mention left or right."""
    crop: Fraction = 0.0
    """Largest share of the width or height that a random crop removes."""
    size: Positive | None = None
    """Width and height of the images of this stage in pixels; null: transform.size. Small images
    make a stage faster (Tan and Le 2021)."""
    doubly_stochastic: NotNegative = 0.05
    """Weight of the loss that spreads a caption's attention over all cells (Xu et al. 2015)."""
    attention_entropy: NotNegative = 0.03
    """Weight of the loss that makes the attention of each word sharp."""
    objectives: dict[str, Any] = field(default_factory=dict)
    """Additional losses of your own, {module:Class: setting}; the setting is usually a weight. See
    losses/objective.py."""
    accumulate: Positive = 1
    """Number of parts that a batch is split into, to save memory; they are computed in turn."""
    patience: Positive | None = None
    """End the stage after this many epochs without a better validation score; null: never."""
    carry_over: Literal["best", "last"] = "best"
    """The epoch whose weights the next stage starts from: `best` is the one with the highest CIDEr
    on validation (noisy on a few hundred photos), `last` is the last one."""
    self_critical: SelfCritical | None = None
    """Learn from the CIDEr-D of sampled captions instead of the data's captions."""

    def _contradictions(self) -> Iterator[str]:
        if self.fine_tune_from is None:
            for name in ("flip", "crop", "size", "encoder_learning_rate"):
                if getattr(self, name):
                    yield f"{name} has no effect while the encoder is frozen: set fine_tune_from"


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Recipe(_Checked):
    """A training run."""

    name: str
    """Name of the run and its checkpoints; default: the name of the recipe's file."""
    data: DataConfig
    stages: tuple[Stage, ...]
    encoder_weights: Annotated[str, MinLen(1)] = "bundled"
    """Initial weights of the encoder: `bundled` (from the bundled checkpoint), `torchvision` (the
    ImageNet weights of torchvision, or of timm for a timm encoder), `random`, or a safetensors file
    (a Captioner checkpoint, or only the encoder's stages)."""
    weights: Annotated[str, MinLen(1)] | None = None
    """Checkpoint to start from: `bundled`, or a Captioner checkpoint with the architecture of this
    recipe. The run starts with the encoder, the decoder and the vocabulary of the checkpoint, and
    ignores encoder_weights. New words of the data are added to the vocabulary."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    transform: TransformConfig = field(default_factory=TransformConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    stochastic_depth: Fraction | None = None
    """Probability that a residual block of the encoder is skipped; null: the backbone's default."""
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 1
    precision: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """dtype of autocast and of the encoder that computes cached grids; weights stay float32.
    `auto`: bfloat16 on hardware that is fast in it, else float32. `float16`, with gradient scaling,
    is for GPUs without bfloat16, such as T4 and V100."""
    weight_decay: NotNegative = 0.02
    """Weight decay of AdamW, for matrices only."""
    gradient_clip: PositiveFloat = 1.0
    """Largest norm of the gradient."""
    label_smoothing: Fraction = 0.1
    ema: Fraction = 0.999
    """Decay of the averaged weights, which are validated and saved; 0: no average."""
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    """Settings of caption generation, for validation and as the defaults of the checkpoint."""
    compile: bool | Literal["auto"] = "auto"
    """Whether the loss is compiled with torch.compile; auto: on a GPU, in stages with a frozen
    encoder and at least 2,000 steps, because compiling takes minutes. If compiling fails, training
    runs without it."""
    log_every: Positive = 50
    """Steps between two lines of the log. A stage has at least 20 lines, or one for each step."""
    save_every_minutes: PositiveFloat = 10.0
    """Minutes between two saved states. A state is also saved after each epoch."""
    keep_epochs: bool = False
    """Keep the checkpoint of every epoch as epochs/STAGE.EPOCH.safetensors, for averaging."""
    max_steps: Positive | None = None
    """Dry run: take only this many steps in each stage, and read only as much data as they need."""

    def _contradictions(self) -> Iterator[str]:
        if not self.stages:
            yield "a recipe needs at least one stage"
        is_folder = Path(self.name).name == self.name and self.name not in ("", "..")
        if not is_folder or not is_printable(self.name):
            yield f"name {self.name!a} cannot be a folder's name: use letters, digits and hyphens"
        stride = self.encoder.stride
        for size in (self.transform.size, *(stage.size for stage in self.stages)):
            if size is not None and size % stride:
                yield f"size is {size}; it must be a multiple of encoder.stride {stride}"

    def compiles(self, stage: Stage, *, steps: int, device: str) -> bool:
        """Whether the loss of a stage of `steps` steps is compiled on this type of device."""
        if self.compile != "auto":
            return self.compile
        return device == "cuda" and stage.fine_tune_from is None and steps >= LONG_STAGE


def resolve(root: str, path: str) -> Path:
    """Return a data path of a recipe below its root."""
    return expanded(root) / expanded(path)


def shipped_recipes() -> dict[str, Path]:
    """Return the file of each recipe, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}


def recipe_path(name: str) -> Path:
    """Return the file of a recipe. Raises ConfigError: there is no such recipe."""
    if name.endswith((".yaml", ".yml")):
        return expanded(name)
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    near = did_you_mean(name, (*shipped, *map(str, Path().glob("*.yaml"))))
    raise ConfigError(
        f"there is no recipe {name!r}{near or '.'} Use a .yaml file, or one of {', '.join(shipped)}"
    )


def recipe_text(name: str) -> str:
    """Return the text of a recipe. Raises ConfigError: it does not exist or is not text."""
    path = recipe_path(name)
    try:
        return read_text(path, name=f"recipe {path}")
    except DataError as error:
        raise ConfigError(error.detail) from error


def load_recipe(name: str, overrides: Mapping[str, str] | None = None) -> Recipe:
    """Read a shipped recipe by its name, or a YAML file.

    Args:
        name: a name of shipped_recipes(), or a path that ends with .yaml or .yml.
        overrides: values of single fields by their dotted names, with stages counted from 1:
            {"stages.1.epochs": "3"}.

    Raises:
        ConfigError: the recipe does not exist, cannot be read, is not YAML, or has invalid fields.
            The message names all of them.
    """
    source = recipe_path(name)
    values = _parse(recipe_text(name), f"recipe {source}")
    if not isinstance(values, dict):
        raise ConfigError(f"recipe {source} is not a YAML mapping of fields to values")
    values.setdefault("name", source.stem)
    problems = [
        f"{key}: {problem}"
        for key, text in (overrides or {}).items()
        if (problem := _set(values, key, text))
    ]
    decoder = values.get("decoder")
    score = decoder.get("score") if isinstance(decoder, dict) else None
    if isinstance(score, str) and (":" in score or "." in score):  # not built in
        SCORES[score] = import_class(score, ScoreFunction, field="decoder.score")
    try:
        recipe = TypeAdapter(Recipe).validate_python(values)
    except ValidationError as error:
        problems += map(_sentence, error.errors())
    if problems:
        raise ConfigError(f"recipe {name} cannot be used:\n  " + "\n  ".join(problems))
    return recipe


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set[str]()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if str(key.value) in names:
                problem = f"{key.value} is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def _parse(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = problem or str(error).splitlines()[0]
        raise ConfigError(f"{source}{line}: invalid YAML: {problem}") from error


def _set(values: dict[str, Any], key: str, text: str) -> str | None:
    """Set a field by its dotted name; return the problem, if any."""
    above, is_objective, name = key.partition(".objectives.")
    *path, last = [*above.split("."), "objectives", name] if is_objective else key.split(".")
    target: Any = values
    for part in path:
        if isinstance(target, list):
            if not part.isdigit() or not 1 <= int(part) <= len(target):
                return f"there is no {part}: use 1 to {len(target)}"
            target = target[int(part) - 1]
        elif isinstance(target, dict):
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
    if not isinstance(target, dict):
        return "there is no such field"
    # A path may contain " #", or be called 2024. pydantic converts texts to numbers.
    is_yaml = is_objective or text[:1] in ("[", "{") or text == "null"
    try:
        target[last] = _parse(text, "its value") if is_yaml else text
    except ConfigError as error:
        return error.detail
    return None


def _sentence(error: Mapping[str, Any]) -> str:
    """Return pydantic's error with the field's name as on the command line."""
    parts = [str(part + 1 if isinstance(part, int) else part) for part in error["loc"]]
    place = ".".join(parts) or "recipe"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        names = [name for name, _, _ in _fields(TypeAdapter(Recipe).json_schema())]
        same = [name for name in names if name.rpartition(".")[2] == parts[-1]]
        near = did_you_mean(place, names) if not same else f", did you mean {same[0]}?"
        return f"{place}: there is no such field{near}"
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should", "should")
    value = error.get("input")
    shown = "" if isinstance(value, dict) else f" (given: {value!r:.40})"
    return f"{place}: {message}{shown}"


def fields_text() -> str:
    """Return a list of all fields: dotted name, default, choices and description."""
    lines = list[str]()
    for name, default, description in _fields(TypeAdapter(Recipe).json_schema()):
        lines += [f"{name}: {default}".rstrip()]
        lines += [f"    {line}" for line in textwrap.wrap(description, _WIDTH)]
    return "\n".join(lines) + "\n"


def _fields(
    schema: dict[str, Any], definitions: dict[str, Any] | None = None, prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield for each field the dotted name, the default with the choices, and the description."""
    definitions = definitions or schema["$defs"]
    for name, entry in schema["properties"].items():
        forms = [entry, *entry.get("anyOf", ()), entry.get("items", {})]
        nested = [form["$ref"].rpartition("/")[2] for form in forms if "$ref" in form]
        default = "(required)" if name in schema.get("required", ()) else ""
        if "default" in entry:
            value = entry["default"]
            default = value if isinstance(value, str) else json.dumps(value)
        if choices := [str(choice) for form in forms for choice in form.get("enum", ())]:
            default += f"  ({', '.join(choices)})"
        yield f"{prefix}{name}", default, entry.get("description", "")
        index = "1." if entry.get("type") == "array" else ""
        for kind in nested:
            yield from _fields(definitions[kind], definitions, f"{prefix}{name}.{index}")


def import_class(path: str, base: type, *, field: str) -> Any:
    """Import a class, named module:Class, of an installed module or a file in the current folder.

    Raises ConfigError: `path`, the value of `field`, does not name a subclass of `base`.
    """
    module, _, name = path.partition(":")
    if not all(map(str.isidentifier, (*module.split("."), name))) or module.endswith(".py"):
        raise ConfigError(f"{field} {path!r} is not module:Class, such as package.module:Class")
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        kind = getattr(import_module(module), name)
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"{field} {path!r} cannot be imported ({type(error).__name__}: {error}): it must be "
            f"installed, or a file in {Path.cwd()}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ConfigError(f"{field} {path!r} is not a subclass of {base.__name__}")
    return kind
