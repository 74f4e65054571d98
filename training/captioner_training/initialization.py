"""The model that a run begins with: fresh, pretrained, or taken over from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import (
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigError,
)
from captioner.model import CaptionModel, ModelConfig
from captioner.paths import bundled_checkpoint, checkpoint_file, there_is_no
from captioner.vision.encoder import Encoder
from captioner.vocabulary import Vocabulary
from captioner_training.recipe import Recipe

__all__ = ["build_model", "load_encoder", "load_origin"]


def load_origin(recipe: Recipe) -> Checkpoint | None:
    """Read the checkpoint that a recipe goes on from; None where it begins afresh.

    Raises CheckpointError: it cannot be read, or does not have the recipe's architecture.
    """
    if recipe.weights is None:
        return None
    origin = load_checkpoint(_weights_file(recipe.weights))
    if differences := list(_differences(recipe, origin)):
        remedy = "set them as they are there, or begin without it: --weights null"
        if recipe.encoder.name != origin.model.config.encoder.name:
            remedy += " --encoder_weights torchvision (downloads ImageNet weights)"
        raise CheckpointMismatchError(
            f"--weights {recipe.weights} does not have the recipe's architecture: "
            f"{'; '.join(differences)}: {remedy}"
        )
    return origin


def _differences(recipe: Recipe, origin: Checkpoint) -> Iterator[str]:
    """Name every setting in which a checkpoint differs from the recipe; dropout may."""
    for part in ("encoder", "decoder"):
        there = asdict(getattr(origin.model.config, part))
        for name, value in asdict(getattr(recipe, part)).items():
            if name != "dropout" and there[name] != value:
                yield f"{part}.{name} is {value!r} here and {there[name]!r} there"
    for name in ("mean", "std"):
        here, there = getattr(recipe.transform, name), getattr(origin.transform, name)
        if here != there:
            yield f"transform.{name} is {list(here)} here and {list(there)} there"
    if (tokenizer := origin.vocabulary.tokenizer) != recipe.data.tokenizer:
        yield f"data.tokenizer is {recipe.data.tokenizer!r} here and {tokenizer!r} there"
    if origin.vocabulary.lowercase != recipe.data.lowercase:
        yield f"data.lowercase is {recipe.data.lowercase} here and not there"


def load_encoder(recipe: Recipe) -> Encoder:
    """Make the encoder of a recipe, pretrained unless it comes from a checkpoint.

    Raises:
        CheckpointError: its weights are missing, or are another encoder's.
        ConfigError: it cannot be built, has no pretrained weights, or too few stages.
    """
    start = recipe.encoder_weights if recipe.weights is None else "random"
    encoder = Encoder(recipe.encoder, pretrained=start == "torchvision")
    for number, stage in enumerate(recipe.stages, start=1):
        if (stage.fine_tune_from or 0) >= len(encoder.stages):
            raise ConfigError(
                f"stages.{number}.fine_tune_from {stage.fine_tune_from}: the encoder has the "
                f"stages 0 to {len(encoder.stages) - 1}"
            )
    if start not in ("torchvision", "random"):
        _load_stages(encoder, _weights_file(start))
    if recipe.stochastic_depth is not None:
        encoder.set_stochastic_depth(recipe.stochastic_depth)
    return encoder


def _load_stages(encoder: Encoder, path: Path) -> None:
    """Load the stages from the encoder inside a checkpoint, or from a file of the stages alone."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointFormatError(f"{path} is not a safetensors file: {error}") from error
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
        raise CheckpointMismatchError(
            f"the encoder in {path} is not a {encoder.config.name}: set --encoder_weights "
            "torchvision (downloads ImageNet weights), random, or a file of its own"
        ) from error


def build_model(
    recipe: Recipe, vocabulary: Vocabulary, *, encoder: Encoder, origin: Checkpoint | None = None
) -> CaptionModel:
    """Make the model of a recipe with the encoder of `load_encoder`, the origin of `load_origin`.

    Raises ConfigError: the decoder is larger than the memory.
    """
    config = ModelConfig(encoder=recipe.encoder, decoder=recipe.decoder)
    try:
        model = CaptionModel(config, vocabulary_size=len(vocabulary), encoder=encoder)
    except (MemoryError, RuntimeError) as error:  # the latter is what torch's allocator raises
        raise ConfigError(
            f"recipe {recipe.name} has a decoder that this machine has not the memory for: lower "
            f"decoder.hidden_dim, or whatever else of it is large ({error})"
        ) from error
    if origin is not None:
        _take_over(model, vocabulary, origin)
    return model


def _take_over(model: CaptionModel, vocabulary: Vocabulary, origin: Checkpoint) -> None:
    """Take over a checkpoint's weights; what belongs to a word follows the word."""
    given = origin.model.state_dict()
    known = [word for word in vocabulary.words if word in origin.vocabulary]
    theirs, ours = origin.vocabulary.encode(known), vocabulary.encode(known)
    fresh = model.state_dict()
    for name in ("decoder.embedding.weight", "decoder.output_bias"):
        if name not in fresh or name not in given:  # a decoder of one's own may have others
            continue
        tensor = fresh[name].clone()
        if tensor.ndim == 1:  # a new word is as unlikely as the rarest, until it has been learned
            ordinary = origin.vocabulary.encode(origin.vocabulary.ordinary_words)
            tensor.fill_(float(given[name][ordinary].min()))
        tensor[ours] = given[name][theirs]
        for style in set(vocabulary.styles or ("",)) - set(origin.vocabulary.styles):
            tensor[vocabulary.start(style)] = given[name][origin.vocabulary.start()]
        given[name] = tensor
    model.load_state_dict(given)


def _weights_file(source: str) -> Path:
    """Find the file that a recipe calls by its path, or "bundled"."""
    path = bundled_checkpoint() if source == "bundled" else checkpoint_file(source)
    if not path.is_file():
        raise CheckpointNotFoundError(there_is_no("file", path))
    return path
