"""Recipes: everything that decides a training run.

The text under a field is its reason; `captioner train --fields` prints them all. recipe_file.py
reads recipes from YAML and from the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval, MinLen
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from captioner.decoders.config import DecoderConfig
from captioner.errors import ConfigError
from captioner.generation.config import GenerationConfig, Length
from captioner.paths import expanded
from captioner.vision.bounds import Fraction, NotNegative, Positive, PositiveFloat, Share
from captioner.vision.encoder import EncoderConfig
from captioner.vision.transform import TransformConfig
from captioner.vocabulary import Tokenizer, is_fit, tokenize

__all__ = [
    "ANY_STYLE",
    "DataConfig",
    "Recipe",
    "ScenesConfig",
    "SelfCritical",
    "Source",
    "Stage",
    "resolve",
]

ANY_STYLE = "any"
"""The style of DataConfig.any_style."""

Scenes = Annotated[int, Interval(ge=1, le=1_000_000)]  # an hour of drawing, and more
_CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def _refuse(problems: Iterator[str]) -> None:
    if found := list(problems):
        raise ConfigError("; ".join(found))


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Source:
    """A split in COCO's captions format whose files are named one by one, below DataConfig.root."""

    captions: str
    """The JSON file."""
    images: str
    """A folder, a tar file, or a glob of them."""
    style: str = ""
    """The style of its captions, where data.styles is set."""


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class ScenesConfig:
    """Drawn scenes in place of a data set: no download, and the right answer is known."""

    train: Scenes = 3000
    validation: Scenes = 300


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class DataConfig:
    """What is trained and validated on."""

    root: str = "."
    """Where the data sets lie on this machine."""
    train: tuple[str | Source, ...] = ()
    """Folders of data sets, prepared or not, of which the split `train` is read; or the files of a
    split by name: {captions, images, style}."""
    validation: tuple[str | Source, ...] = ()
    """As train; of a folder the split `val` is read."""
    scenes: ScenesConfig | None = None
    """Drawn scenes instead of train and validation."""
    styles: bool = False
    """Whether the captions of each training set begin with a token of its own, by the name of its
    folder, so that one model holds the styles of all. The first is the usual one, any other is
    asked for (generation.style). Validation sets of these names are captioned in their style."""
    any_style: Fraction = 0.0
    """With styles, the share of the images, drawn anew in every epoch, whose captions begin with
    the token of one more, `any`. It is learned from all sets, for photos of none of them, and is
    the usual style: without it a model has to be told whose captions it is to write."""
    minimum_count: Positive = 5
    """Rarer words become <unk>: too few examples to learn from."""
    maximum_length: Length = 22
    """Words a caption; longer ones are cut, they are few and slow."""
    tokenizer: Tokenizer = "words"
    """`words` is for English, `unicode` for any other language that has spaces between words (by
    Unicode's rules), `characters` for those without, such as Chinese."""
    lowercase: bool = True
    """Whether words are learned in small letters; false where capitals belong to the language, as
    to German nouns."""
    workers: Annotated[int, Ge(0)] | Literal["auto"] = "auto"
    """Processes that decode images, at most one per core; auto: the cores of the machine over its
    training processes."""

    def __post_init__(self) -> None:
        _refuse(self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if (self.scenes is None) == (not self.train or not self.validation):
            yield "data needs either scenes, or both train and validation"
        sources = [one for one in (*self.train, *self.validation) if isinstance(one, Source)]
        if not self.styles:
            if self.any_style > 0:
                yield "data.any_style has no effect without data.styles: set it, or leave it out"
            if any(one.style for one in sources):
                yield "the style of a set has no effect without data.styles: set it"
            return
        if self.scenes is not None:
            yield "data.styles has no effect on scenes: leave it out"
        names = [self.style_of(one) for one in self.train]
        if "" in names:
            yield "data.styles needs the style of each training set that is named by its files"
        folders = [self.style_of(one) for one in self.train if isinstance(one, str)]
        if len(set(folders)) < len(folders):
            yield "data.styles names training sets by their folders, and two have the same name"
        if self.any_style > 0 and ANY_STYLE in names:
            yield f"data.any_style is of a style {ANY_STYLE}, and a training set has that name"

    def tokenize(self, caption: str) -> list[str]:
        """Split a caption into the words that are learned."""
        return tokenize(caption, self.tokenizer, lowercase=self.lowercase)

    def style_of(self, entry: str | Source) -> str:
        """Name the style of a data set: its own, or the name of its folder."""
        if isinstance(entry, Source):
            return entry.style
        return resolve(self.root, entry).absolute().name


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class SelfCritical:
    """Self-critical sequence training (Rennie et al. 2017); see losses/self_critical.py."""

    samples: Positive = 5
    """Captions drawn an image."""
    temperature: PositiveFloat = 0.5
    """The policy is the softmax of scores / temperature. Label smoothing has left a tenth of the
    probability on words that make no sense; drawn at 1, most samples would have one of them."""
    baseline: Literal["mean", "greedy"] = "mean"
    """What a sample's reward is compared with: the mean of the image's other samples (Luo 2020), or
    the reward of the greedy caption (Rennie et al. 2017)."""
    cross_entropy: NotNegative = 0.0
    """How much the cross-entropy of the data's captions weighs beside the reward (Wu et al. 2016,
    equation 9). Without it the words' probabilities soon are no longer those of people's words."""
    maximum_length: Length | None = None
    """Words a caption drawn; null: data.maximum_length. All captions of a batch are as long as the
    longest to compute, and hardly one of 9 words on average has more than 16."""

    def __post_init__(self) -> None:
        if self.samples < 2 and self.baseline == "mean":
            raise ConfigError("samples 1 is too few for the baseline mean: use 2 or more")


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Stage:
    """A part of the training with its own learning rates."""

    epochs: Positive
    batch_size: Positive = 64
    """Images of all processes together, each with all its captions."""
    learning_rate: NotNegative = 1e-3
    """Of the decoder, at its peak."""
    encoder_learning_rate: NotNegative | None = None
    """Of what is trained of the encoder; null: 1e-4, for it knows images already."""
    fine_tune_from: Annotated[int, Ge(0)] | None = None
    """The first encoder stage that is trained; null: it is frozen, and its grids are cached."""
    warmup: Annotated[int, Ge(0)] = 200
    """Steps; Adam's second moments need them."""
    flip: bool = False
    """Mirror images whose captions do not tell left from right."""
    crop: Fraction = 0.0
    """The largest share of a side that a random crop cuts away."""
    size: Positive | None = None
    """Pixels of a side, in place of transform.size: fewer are faster (Tan and Le 2021)."""
    doubly_stochastic: NotNegative = 0.05
    """Weighs what asks the words to look at different cells; see losses/attention.py."""
    attention_entropy: NotNegative = 0.03
    """Weighs what asks every word to look at few cells; see losses/attention.py."""
    objectives: dict[str, Any] = field(default_factory=dict)
    """Objectives of one's own, each with its setting, such as its weight:
    `my_package.my_file:MyTerm`; see losses/objective.py."""
    accumulate: Positive = 1
    """Parts that a batch is computed in, one by one: less memory."""
    scheduled_sampling: Share = 0.0
    """The share of words, at the end of the stage, that are the model's own and not the caption's;
    see step.py. 0.1 to 0.25 is usual."""
    patience: Positive | None = None
    """Epochs without a better validation score that end the stage."""
    carry_over: Literal["best", "last"] = "best"
    """The epoch whose weights the next stage starts from. The best has the highest CIDEr, which is
    noisy on a few hundred photos."""
    self_critical: SelfCritical | None = None
    """Learn from CIDEr-D of captions that the model draws, instead of the data's captions."""

    def __post_init__(self) -> None:
        _refuse(self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        for name in self.objectives:
            if not all(name.partition(":")):
                yield (
                    f"objectives {name!r}: name module:Class; those that are a field of the stage "
                    "are set there"
                )
        if self.fine_tune_from is None:
            set_in_vain = {
                "flip": self.flip,
                "crop": self.crop > 0,
                "size": self.size is not None,
                "encoder_learning_rate": self.encoder_learning_rate is not None,
            }
            if names := [name for name, is_set in set_in_vain.items() if is_set]:
                yield (
                    f"{', '.join(names)} has no effect in a stage whose encoder is frozen: set "
                    "fine_tune_from, or leave it out"
                )
        if self.self_critical is not None and self.scheduled_sampling > 0:
            yield (
                "scheduled_sampling has no effect in a self-critical stage, which draws whole "
                "captions: leave it out"
            )

    @property
    def encoder_rate(self) -> float:
        """The peak learning rate of what is trained of the encoder."""
        return 1e-4 if self.encoder_learning_rate is None else self.encoder_learning_rate


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Recipe:
    """A training run."""

    name: str
    """Of the run and of its checkpoints; by default that of the recipe's file."""
    data: DataConfig
    stages: tuple[Stage, ...]
    encoder_weights: Annotated[str, MinLen(1)] = "bundled"
    """`bundled` (the encoder inside the bundled checkpoint), `torchvision`, `random`, or the path
    of a safetensors file: a Captioner checkpoint or the backbone's stages."""
    weights: Annotated[str, MinLen(1)] | None = None
    """A Captioner checkpoint to go on from (`bundled` or a path), decoder and words included; words
    of the data that it lacks are added. It takes the place of encoder_weights, and must have the
    recipe's architecture."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    transform: TransformConfig = field(default_factory=TransformConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    stochastic_depth: Fraction | None = None
    """The chance that a block of the encoder is left out in training; null: the backbone's own."""
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 1
    precision: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Of autocast and of cached grids; trained weights stay float32. `auto`: bfloat16 on hardware
    that is fast in it, else float32. `float16`, with scaled gradients, is for GPUs without
    bfloat16, such as T4 and V100."""
    weight_decay: NotNegative = 0.02
    """AdamW's; matrices only."""
    gradient_clip: PositiveFloat = 1.0
    """The norm of the gradient at most; recurrent gradients burst now and then."""
    label_smoothing: Fraction = 0.1
    ema: Fraction = 0.999
    """Of the averaged weights that are validated and kept; 0: no average."""
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    """How the checkpoint makes its captions, in validation and wherever it is used later."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile for the whole loss; auto: on GPUs. Without a working compiler training goes on
    without it."""
    log_every: Positive = 50
    """Steps between two lines of the log, which has 20 a stage at least."""
    save_every_minutes: PositiveFloat = 10.0
    """Between two states; each epoch ends with one too."""
    save_every_steps: Positive | None = None
    """Between two states, beside save_every_minutes."""
    keep_states: Positive = 2
    """The newest; each holds weights, their average, and two moments."""
    keep_epochs: bool = False
    """Keep the checkpoint of every epoch, as epochs/STAGE.EPOCH.safetensors: for a mean of some."""
    keep_files: bool = False
    """Keep states and cached grids of a finished run too."""
    max_steps: Positive | None = None
    """A dry run: so many steps of each stage, on so much data."""

    def __post_init__(self) -> None:
        _refuse(self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if not self.stages:
            yield "a recipe needs at least one stage"
        elif self.stages[-1].carry_over == "last":
            yield (
                "carry_over has no effect in the last stage: leave it out, and use "
                "last.safetensors, which every run writes"
            )
        if not is_fit(self.name):
            yield f"name {self.name!a} has characters that steer a terminal: leave them out"
        if Path(self.name).name != self.name or self.name in ("", ".."):
            yield f"name {self.name!r} is no plain file name, such as a run's folder has: use one"
        stride = self.encoder.stride
        sizes = {f"stages.{number}.size": one.size for number, one in enumerate(self.stages, 1)}
        if self.transform.size in sizes.values():
            yield "the size of a stage is that of the transform: leave it out"
        for name, size in {"transform.size": self.transform.size, **sizes}.items():
            if size is not None and size % stride:
                below = size - size % stride
                near = f"{below} or {below + stride}" if below else f"{stride}"
                yield f"{name} {size} is not a multiple of encoder.stride {stride}: use {near}"


def resolve(root: str, path: str) -> Path:
    """Place a data path of a recipe on this machine."""
    return expanded(root) / expanded(path)
