"""The model that a run begins with: fresh, pretrained, or taken over from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torchvision.ops import StochasticDepth

from captioner.checkpoint import Checkpoint, load_checkpoint
from captioner.errors import CheckpointFormatError, CheckpointMismatchError, ConfigError
from captioner.model import CaptionModel, ModelConfig
from captioner.vision.encoder import Encoder
from captioner.vocabulary import Vocabulary
from captioner_training.recipe import Recipe
from captioner_training.recipe_weights import encoder_starts, weights_file

__all__ = ["build_model", "check_encoder", "load_origin"]


def check_encoder(recipe: Recipe) -> None:
    """Refuse an encoder that cannot be built, such as one of an impossible stride.

    Raises:
        ConfigError: it is so.

    """
    with torch.device("meta"):
        Encoder(recipe.encoder)


def load_origin(recipe: Recipe) -> Checkpoint | None:
    """Read the checkpoint that a recipe goes on from; None where it begins afresh.

    Raises:
        CheckpointError: it cannot be read.

    """
    return None if recipe.weights is None else load_checkpoint(weights_file(recipe.weights))


def build_model(
    recipe: Recipe,
    vocabulary: Vocabulary,
    *,
    origin: Checkpoint | None = None,
    encoder_share: float = 1.0,
) -> CaptionModel:
    """Make the model of a recipe, its encoder pretrained as the recipe says.

    Args:
        recipe: of the run.
        vocabulary: what the model will say.
        origin: of `load_origin`.
        encoder_share: how much of its encoder is taken over; the rest is pretrained.

    Raises:
        CheckpointError: the encoder's weights are missing, or are another encoder's.
        ConfigError: the decoder is larger than the memory.

    """
    pretrained = origin is None or encoder_share < 1
    start = recipe.encoder_weights if pretrained else "random"
    encoder = Encoder(recipe.encoder, pretrained=start == "torchvision")
    if start not in ("torchvision", "random"):
        _load_encoder(encoder, weights_file(start), starts=encoder_starts(recipe))
    if recipe.stochastic_depth is not None:
        for module in encoder.modules():
            if isinstance(module, StochasticDepth):
                module.p = recipe.stochastic_depth
    config = ModelConfig(encoder=recipe.encoder, decoder=recipe.decoder)
    try:
        model = CaptionModel(config, vocabulary_size=len(vocabulary), encoder=encoder)
    except (MemoryError, RuntimeError) as error:  # the latter is what torch's allocator raises
        raise ConfigError(
            f"recipe {recipe.name} has a decoder that this machine has not the memory for: lower "
            f"decoder.hidden_dim, or whatever else of it is large ({error})"
        ) from error
    if origin is not None:
        _take_over(
            model, vocabulary, origin, encoder_share=encoder_share, named=str(recipe.weights)
        )
    return model


def _take_over(
    model: CaptionModel,
    vocabulary: Vocabulary,
    origin: Checkpoint,
    *,
    encoder_share: float,
    named: str,
) -> None:
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
    for name, tensor in fresh.items() if encoder_share < 1 else ():
        if name.startswith("encoder.") and tensor.is_floating_point() and name in given:
            given[name] = torch.lerp(tensor, given[name].to(tensor.dtype), encoder_share)
    try:
        model.load_state_dict(given)
    except RuntimeError as error:
        raise CheckpointMismatchError(
            f"{named} does not have the recipe's architecture: {str(error).splitlines()[1].strip()}"
        ) from error


def _load_encoder(encoder: Encoder, path: Path, *, starts: str) -> None:
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
            f"the encoder in {path} is not a {encoder.config.name}: start it from {starts}"
        ) from error
