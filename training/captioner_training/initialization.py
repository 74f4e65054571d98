"""The model that a run begins with: fresh, pretrained, or taken over from a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torchvision.ops import StochasticDepth

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.encoder import Encoder
from captioner.errors import (
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigError,
)
from captioner.header import bundled_checkpoint, read_header
from captioner.model import CaptionModel, ModelConfig
from captioner.vocabulary import Vocabulary
from captioner_training.recipe import Recipe

__all__ = ["build_model", "check_model", "load_origin"]


def check_model(recipe: Recipe) -> None:
    """Refuse an impossible encoder, stages that it does not have, and missing weights.

    Raises:
        ConfigError: the detail names every such field.
        CheckpointError: the encoder's weights are missing.

    """
    with torch.device("meta"):
        encoder = Encoder(recipe.encoder)
    last = len(encoder.stages) - 1
    problems = [
        f"stages.{number}.fine_tune_from {stage.fine_tune_from}: the encoder has the stages 0 "
        f"to {last}"
        for number, stage in enumerate(recipe.stages, start=1)
        if stage.fine_tune_from is not None and stage.fine_tune_from > last
    ]
    if problems:
        raise ConfigError("the recipe cannot be used:\n  " + "\n  ".join(problems))
    if recipe.weights is not None:
        _check_origin(recipe, recipe.weights)
    elif recipe.encoder_weights not in ("torchvision", "random"):
        _check_encoder(recipe, _file_of(recipe.encoder_weights))


def _check_encoder(recipe: Recipe, path: Path) -> None:
    """Refuse another backbone's weights, as far as the file says what it holds."""
    try:
        name = read_header(path)["encoder"]["name"]
    except (CheckpointFormatError, KeyError):  # the backbone's stages alone, as published
        return
    if name != recipe.encoder.name:
        raise ConfigError(
            f"encoder.name is {recipe.encoder.name}, but the encoder in {path} is {name}: set "
            "--encoder_weights torchvision (downloads ImageNet weights), random, or a file of its "
            "own"
        )


def _check_origin(recipe: Recipe, named: str) -> None:
    """Name every setting in which a checkpoint that is gone on from differs from the recipe."""
    header = read_header(_file_of(named))
    problems = []
    for part in ("encoder", "decoder"):
        given = asdict(getattr(recipe, part))
        there = {**asdict(type(getattr(recipe, part))()), **header[part]}
        problems += [
            f"{part}.{name} is {value!r} here and {there[name]!r} there"
            for name, value in given.items()
            if name != "dropout" and there.get(name) != value
        ]
    if (tokenizer := header.get("tokenizer", "words")) != recipe.data.tokenizer:
        problems.append(f"data.tokenizer is {recipe.data.tokenizer!r} here and {tokenizer!r} there")
    if problems:
        raise CheckpointMismatchError(
            f"--weights {named} does not have the recipe's architecture: {'; '.join(problems)}"
        )


def load_origin(recipe: Recipe) -> Checkpoint | None:
    """Read the checkpoint that a recipe goes on from; None where it begins afresh.

    Raises:
        CheckpointError: it cannot be read.

    """
    return None if recipe.weights is None else load_checkpoint(_file_of(recipe.weights))


def build_model(
    recipe: Recipe, vocabulary: Vocabulary, *, origin: Checkpoint | None = None
) -> CaptionModel:
    """Make the model of a recipe, its encoder pretrained as the recipe says.

    Args:
        recipe: of the run.
        vocabulary: what the model will say.
        origin: of `load_origin`.

    Raises:
        CheckpointError: the encoder's weights are missing, or are another encoder's.

    """
    start = recipe.encoder_weights if origin is None else "random"
    encoder = Encoder(recipe.encoder, pretrained=start == "torchvision")
    if start not in ("torchvision", "random"):
        _load_encoder(encoder, _file_of(start))
    if recipe.stochastic_depth is not None:
        for module in encoder.modules():
            if isinstance(module, StochasticDepth):
                module.p = recipe.stochastic_depth
    config = ModelConfig(encoder=recipe.encoder, decoder=recipe.decoder)
    model = CaptionModel(config, vocabulary_size=len(vocabulary), encoder=encoder)
    if origin is not None:
        _take_over(model, vocabulary, origin, named=str(recipe.weights))
    return model


def _take_over(
    model: CaptionModel, vocabulary: Vocabulary, origin: Checkpoint, *, named: str
) -> None:
    """Take over a checkpoint's weights; what belongs to a word follows the word."""
    given = origin.model.state_dict()
    known = [word for word in vocabulary.words if word in origin.vocabulary]
    theirs, ours = origin.vocabulary.encode(known), vocabulary.encode(known)
    for name in ("decoder.embedding.weight", "decoder.output_bias"):
        tensor = model.state_dict()[name].clone()
        if tensor.ndim == 1:  # a new word is as unlikely as the rarest, until it has been learned
            tensor.fill_(float(given[name][theirs].min()))
        tensor[ours] = given[name][theirs]
        given[name] = tensor
    try:
        model.load_state_dict(given)
    except RuntimeError as error:
        raise CheckpointMismatchError(
            f"{named} does not have the recipe's architecture: {str(error).splitlines()[1].strip()}"
        ) from error


def _file_of(source: str) -> Path:
    path = bundled_checkpoint() if source == "bundled" else Path(source).expanduser()
    if not path.is_file():
        raise CheckpointNotFoundError(f"there is no file {path} to start from")
    return path


def _load_encoder(encoder: Encoder, path: Path) -> None:
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
            f"the encoder in {path} is not a {encoder.config.name}: start it from "
            "--encoder_weights torchvision, random, or a file of its own"
        ) from error
