"""Recipes: everything that decides a training run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Interval
from pydantic import BeforeValidator, ConfigDict

from captioner.decoders.config import DecoderConfig
from captioner.generation.config import GenerationConfig, Length
from captioner.paths import expanded
from captioner.vision.backbones import EncoderConfig
from captioner.vision.bounds import (
    Fraction,
    NotNegative,
    Positive,
    PositiveFloat,
    Share,
    check_bounds,
)
from captioner.vision.geometry import TransformConfig
from captioner.vocabulary import Tokenizer, is_fit

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

Scenes = Annotated[int, Interval(ge=1, le=1_000_000)]  # an hour of drawing, and more
_renamed = BeforeValidator(lambda name: "bfloat16" if name == "bf16" else name)  # of older runs
Precision = Annotated[Literal["auto", "bfloat16", "float32"], _renamed]

ANY_STYLE = "any"  # the style of DataConfig.any_style

_STRICT = ConfigDict(extra="forbid")
_ENCODER_RATE = 1e-4  # small: the encoder knows images already


@dataclass(frozen=True, kw_only=True)
class Source:
    """A split in COCO's captions format whose files are named one by one.

    Relative paths start at DataConfig.root.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    captions: str  # the json file
    images: str  # a folder, a tar file, or a glob of them
    style: str = ""  # of its captions, where data.styles is set


@dataclass(frozen=True, kw_only=True)
class ScenesConfig:
    """Drawn scenes in place of a data set: no download, and the right answer is known."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    train: Scenes = 3000
    validation: Scenes = 300

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained and validated on."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    root: str = "."  # where the data set lies on this machine; `--data.root DIR` on the command
    # A data set is one folder, prepared or not (see data/reading.py), of which the split
    # `train` or `val` is read; or its files by name.
    train: tuple[str | Source, ...] = ()
    validation: tuple[str | Source, ...] = ()
    scenes: ScenesConfig | None = None  # instead of train and validation
    # Whether the captions of each training set begin with a token of its own, by the name of its
    # folder, so that one model holds the styles of all: the first is the usual one, any other is
    # asked for (generation.style). Validation sets of these names are captioned in their style.
    styles: bool = False
    # With styles, the share of the images, drawn anew in every epoch, whose captions begin with the
    # token of one more, `any`. It is learned from all sets, for photos of none of them, and is the
    # usual style: without it a model has to be told whose captions it is to write.
    any_style: Fraction = 0.0
    # Boxes of objects in training images, files in COCO's instances format: what a stage with
    # attention_supervision learns from. Their ids are those of the captions.
    boxes: tuple[str, ...] = ()
    minimum_count: Positive = 5  # rarer words become <unk>: too few examples to learn from
    maximum_length: Length = 22  # words a caption; longer ones are cut, they are few and slow
    # "characters" for languages that are written without spaces, such as Chinese.
    tokenizer: Tokenizer = "words"
    workers: Annotated[int, Ge(0)] = 2  # processes that decode images; no more than cores are used

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if (self.scenes is None) == (not self.train or not self.validation):
            yield "data needs either scenes, or both train and validation"
        if self.any_style > 0 and not self.styles:
            yield "data.any_style has no effect without data.styles: set it, or leave it out"
        if self.styles and self.scenes is not None:
            yield "data.styles has no effect on scenes: leave it out"
        if self.styles and any(not (isinstance(one, str) or one.style) for one in self.train):
            yield "data.styles needs the style of each training set that is named by its files"
        given = [one for one in self.train if isinstance(one, str) and self.styles]
        folders = [resolve(self.root, one).absolute().name for one in given]
        if len(set(folders)) < len(folders):
            yield "data.styles names training sets by their folders, and two have the same name"
        named = {*folders, *(one.style for one in self.train if isinstance(one, Source))}
        if self.any_style > 0 and ANY_STYLE in named:
            yield f"data.any_style is of a style {ANY_STYLE}, and a training set has that name"
        sources = [one for one in (*self.train, *self.validation) if isinstance(one, Source)]
        if not self.styles and any(one.style for one in sources):
            yield "the style of a set has no effect without data.styles: set it, or leave it out"


@dataclass(frozen=True, kw_only=True)
class SelfCritical:
    """Self-critical sequence training (Rennie et al. 2017); see losses/self_critical.py."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    samples: Positive = 5  # captions drawn an image
    # The policy is the softmax of scores / temperature. Label smoothing has left a tenth of the
    # probability on words that make no sense; drawn at 1, most samples would have one of them.
    temperature: PositiveFloat = 0.5
    # What a sample's reward is compared with: the mean of the image's other samples (Luo 2020), or
    # the reward of the greedy caption (Rennie et al. 2017).
    baseline: Literal["mean", "greedy"] = "mean"
    # How much the cross-entropy of the data's captions weighs beside the reward (Wu et al. 2016,
    # equation 9). Without it the words' probabilities soon are no longer those of people's words.
    cross_entropy: NotNegative = 0.0
    # Words a caption drawn; null: data.maximum_length. All captions of a batch are as long as the
    # longest to compute, and hardly one of 9 words on average has more than 16.
    maximum_length: Length | None = None

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if self.samples < 2 and self.baseline == "mean":
            yield "samples 1 is too few for the baseline mean: use 2 or more"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the training with its own learning rates."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    epochs: Positive
    batch_size: Positive = 64  # images of all processes together, each with all its captions
    learning_rate: NotNegative = 1e-3  # of the decoder, at its peak
    encoder_learning_rate: NotNegative | None = None  # null: 1e-4 where the encoder is trained
    # The first encoder stage that is trained; null: the encoder is frozen, its grids are cached.
    fine_tune_from: Annotated[int, Ge(0)] | None = None
    warmup: Annotated[int, Ge(0)] = 200  # steps; Adam's second moments need them
    flip: bool = False  # mirror images whose captions do not tell left from right
    crop: Fraction = 0.0  # the largest share of a side that a random crop cuts away
    # Pixels of a side, in place of transform.size: fewer are faster (Tan and Le 2021).
    size: Positive | None = None
    # Asks the words to look at different cells; see losses/cross_entropy.py.
    doubly_stochastic: NotNegative = 0.05
    attention_entropy: NotNegative = 0.03  # asks every word to look at few cells; see there too
    # Asks words for an object to look at its boxes (data.boxes); see losses/supervision.py.
    attention_supervision: NotNegative = 0.0
    accumulate: Positive = 1  # parts that a batch is computed in, one by one: less memory
    # The share of words, at the end of the stage, that are the model's own and not the caption's.
    scheduled_sampling: Share = 0.0  # see step.py; 0.1 to 0.25 is usual
    patience: Positive | None = None  # epochs without a better validation score that end it
    # The epoch whose weights the next stage begins from. The best is of the highest CIDEr, which a
    # few hundred photos tell by chance: on 650 it was an epoch with 0.04 nats a word to learn.
    hand_on: Literal["best", "last"] = "best"
    self_critical: SelfCritical | None = None  # learn from CIDEr-D of sampled captions instead

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if self.fine_tune_from is None:
            given = {
                "flip": self.flip,
                "crop": self.crop > 0,
                "size": self.size is not None,
                "encoder_learning_rate": self.encoder_learning_rate is not None,
            }
            if names := [name for name, there in given.items() if there]:
                yield (
                    f"{', '.join(names)} has no effect in a stage whose encoder is frozen: set "
                    "fine_tune_from, or leave it out"
                )
        if self.attention_supervision > 0 and (self.flip or self.crop > 0 or self.size):
            yield (
                "attention_supervision needs images as they are, since boxes do not move with "
                "them: set flip false and crop 0, and leave size out"
            )
        if self.attention_supervision > 0 and self.self_critical is not None:
            yield (
                "attention_supervision has no effect in a self-critical stage, which draws whole "
                "captions: leave it out"
            )
        if self.self_critical is not None and self.scheduled_sampling > 0:
            yield (
                "scheduled_sampling has no effect in a self-critical stage, which draws whole "
                "captions: leave it out"
            )

    @property
    def encoder_rate(self) -> float:
        """The peak learning rate of what is trained of the encoder."""
        rate = self.encoder_learning_rate
        return _ENCODER_RATE if rate is None else rate


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
    # A Captioner checkpoint to go on from ("bundled" or a path), decoder and words included; words
    # of the data that it lacks are added. It takes the place of encoder_weights, and must have the
    # recipe's architecture.
    weights: str | None = None
    # How much of its encoder is taken over; the rest is encoder_weights' (a mean of weights,
    # Wortsman et al. 2022). Less than all of it forgets photos that it has learned by heart.
    encoder_share: Share = 1.0
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    transform: TransformConfig = field(default_factory=TransformConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    # The chance that a block of the encoder is left out in training; null: the backbone's own.
    stochastic_depth: Fraction | None = None
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 1
    # Of autocast and of cached grids; what is trained stays float32. "auto": bfloat16 where the
    # hardware has it, for emulated it is slower than float32.
    precision: Precision = "auto"
    weight_decay: NotNegative = 0.02  # AdamW's; matrices only
    gradient_clip: PositiveFloat = 1.0  # norm; recurrent gradients burst now and then
    label_smoothing: Fraction = 0.1
    ema: Fraction = 0.999  # of the averaged weights that are validated and kept; 0: no average
    # How the checkpoint makes its captions, in validation and wherever it is used later.
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    # torch.compile for the encoder that is trained: on two CPU cores 1.24 times as slow (float32,
    # 32 photos of 224), on GPUs not measured.
    compile: bool = False
    tensorboard: bool = False  # write event files for TensorBoard into DIR/tensorboard
    log_every: Positive = 50  # steps between two lines of the log, which has 20 a stage at least
    save_every_minutes: PositiveFloat = 10.0  # between two states; each epoch ends with one too
    save_every_steps: Positive | None = None
    keep_states: Positive = 2  # the newest; each holds weights, their average, and two moments
    keep_files: bool = False  # keep states and cached grids of a finished run too
    max_steps: Positive | None = None  # a dry run: so many steps of each stage, on so much data

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if self.stages and self.stages[-1].hand_on == "last":
            yield (
                "hand_on has no effect in the last stage: leave it out, and take last.safetensors, "
                "which every run writes beside the best"
            )
        if self.encoder_share < 1 and self.weights is None:
            yield "encoder_share has no effect without weights to go on from: leave it out"
        elif self.encoder_share < 1 and self.encoder_weights in ("random", self.weights):
            yield "encoder_share takes the rest from encoder_weights: name another pretrained one"
        if not is_fit(self.name):
            yield f"name {self.name!a} has characters that steer a terminal: leave them out"
        if not self.stages:
            yield "a recipe needs at least one stage"
        if not self.data.boxes and any(one.attention_supervision > 0 for one in self.stages):
            yield "attention_supervision needs data.boxes: name files of boxes, or leave it out"
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
