"""From a recipe to data and model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torchvision.ops import StochasticDepth

from captioner.checkpoint import load_checkpoint
from captioner.encoder import Encoder
from captioner.errors import CheckpointFormatError, CheckpointMismatchError, CheckpointNotFoundError
from captioner.header import bundled_checkpoint
from captioner.model import CaptionModel, ModelConfig
from captioner.vocabulary import Vocabulary
from captioner_training.data.dataset import CaptionedImage, read_coco, read_dataset
from captioner_training.data.scenes import write_scenes
from captioner_training.recipe import Recipe, Source, resolve

__all__ = ["Data", "build_data", "build_model"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The images of a run and the words in their captions."""

    train: list[CaptionedImage]
    validation: list[CaptionedImage]
    vocabulary: Vocabulary


def build_data(recipe: Recipe, *, out: Path) -> Data:
    """Read the data sets of a recipe, or draw its scenes into `out`.

    Raises:
        DataError: a data set cannot be read.

    """
    data = recipe.data
    if data.scenes is None:
        train = _read(data.root, data.train, "train")
        validation = _read(data.root, data.validation, "val")
    else:
        folder = out / "scenes"
        splits = {"train": data.scenes.train, "val": data.scenes.validation}
        write_scenes(folder, splits=splits, seed=recipe.seed)
        train = read_dataset(folder, split="train")
        validation = read_dataset(folder, split="val")
    vocabulary = Vocabulary.build(
        (words for image in train for words in image.words), minimum_count=data.minimum_count
    )
    return Data(train=train, validation=validation, vocabulary=vocabulary)


def _read(root: str, entries: Sequence[str | Source], split: str) -> list[CaptionedImage]:
    images: list[CaptionedImage] = []
    for entry in entries:
        if isinstance(entry, str):
            images += read_dataset(resolve(root, entry), split=split)
        else:
            images += read_coco(resolve(root, entry.captions), resolve(root, entry.images))
    return images


def build_model(recipe: Recipe, vocabulary: Vocabulary) -> CaptionModel:
    """Make the model of a recipe, its encoder pretrained as the recipe says.

    Raises:
        CheckpointError: the encoder's weights are missing, or are another encoder's.

    """
    start = recipe.encoder_weights if recipe.weights is None else "random"
    encoder = Encoder(recipe.encoder, pretrained=start == "torchvision")
    if start not in ("torchvision", "random"):
        _load_encoder(encoder, recipe.encoder_weights)
    if recipe.stochastic_depth is not None:
        for module in encoder.modules():
            if isinstance(module, StochasticDepth):
                module.p = recipe.stochastic_depth
    config = ModelConfig(encoder=recipe.encoder, decoder=recipe.decoder)
    model = CaptionModel(config, vocabulary_size=len(vocabulary), encoder=encoder)
    if recipe.weights is not None:
        bundled = recipe.weights == "bundled"
        path = bundled_checkpoint() if bundled else Path(recipe.weights).expanduser()
        _load_weights(model, vocabulary, path)
    return model


def _load_weights(model: CaptionModel, vocabulary: Vocabulary, path: Path) -> None:
    """Take over a checkpoint's weights; what belongs to a word follows the word."""
    source = load_checkpoint(path)
    given = source.model.state_dict()
    known = [word for word in vocabulary.words if word in source.vocabulary]
    theirs, ours = source.vocabulary.encode(known), vocabulary.encode(known)
    for name in ("decoder.embedding.weight", "decoder.output_bias"):
        tensor = model.state_dict()[name].clone()
        tensor[ours] = given[name][theirs]
        given[name] = tensor
    try:
        model.load_state_dict(given)
    except RuntimeError as error:
        raise CheckpointMismatchError(
            f"{path} does not have the recipe's architecture: {str(error).splitlines()[1].strip()}"
        ) from error


def _load_encoder(encoder: Encoder, source: str) -> None:
    """Load the stages from the encoder inside a checkpoint, or from a file of the stages alone."""
    path = bundled_checkpoint() if source == "bundled" else Path(source)
    if not path.is_file():
        raise CheckpointNotFoundError(f"there is no file {path} to start the encoder from")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointFormatError(f"{path} is no readable safetensors file: {error}") from error
    prefix = "encoder.stages."
    stages: dict[str, Tensor] = {
        name.removeprefix(prefix): tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix) or not name.startswith("decoder.")
    }
    if encoder.config.last_stage is not None:
        kept = tuple(f"{stage}." for stage in range(encoder.config.last_stage + 1))
        stages = {name: tensor for name, tensor in stages.items() if name.startswith(kept)}
    try:
        encoder.stages.load_state_dict(stages)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()
        raise CheckpointMismatchError(
            f"the encoder in {path} is not a {encoder.config.name}: {reason}"
        ) from error
