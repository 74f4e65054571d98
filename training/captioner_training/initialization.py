"""The initial model of a run: random, pretrained, or from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
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
from captioner.model.encoder import Encoder
from captioner.model.model import CaptionModel, ModelConfig
from captioner.photos.transform import TransformConfig
from captioner.shared.paths import checkpoint_file, there_is_no
from captioner.vocabulary import Vocabulary
from captioner_training.recipe import DataConfig, Recipe


def load_initial(recipe: Recipe) -> Checkpoint | None:
    """Read the checkpoint that a recipe starts from (`weights`), or return None."""
    if recipe.weights is None:
        return None
    origin = load_checkpoint(_weights_file(recipe.weights))
    if differences := list(_differences(recipe, origin)):
        remedy = "change the recipe, or start without it: --weights null"
        if recipe.encoder.name != origin.model.config.encoder.name:
            remedy += " --encoder_weights torchvision (downloads ImageNet weights, also of timm)"
        raise CheckpointMismatchError(
            f"--weights {recipe.weights} has another architecture than the recipe "
            f"({'; '.join(differences)}): {remedy}"
        )
    return origin


def _differences(recipe: Recipe, origin: Checkpoint) -> Iterator[str]:
    """Yield each setting in which a checkpoint differs from the recipe."""
    theirs = model_settings(origin.model.config, origin.transform, origin.vocabulary)
    for name, value in model_settings(recipe, recipe.transform, recipe.data).items():
        is_free = name.startswith("transform.") and name not in ("transform.mean", "transform.std")
        if value != theirs[name] and not is_free:
            yield f"{name} is {value!r} in the recipe, {theirs[name]!r} in the checkpoint"


def model_settings(
    config: ModelConfig | Recipe, transform: TransformConfig, words: Vocabulary | DataConfig
) -> dict[str, object]:
    """Return the settings on which the use of weights depends, by their names in a recipe."""
    values: dict[str, object] = {
        "data.tokenizer": words.tokenizer, "data.lowercase": words.lowercase
    }  # fmt: skip
    for part, settings in (
        ("encoder", config.encoder),
        ("decoder", replace(config.decoder, dropout=0.0)),
        ("transform", transform),
    ):
        values |= {f"{part}.{name}": value for name, value in asdict(settings).items()}
    return values


def load_encoder(recipe: Recipe) -> Encoder:
    """Build the encoder of a recipe, with its `encoder_weights` unless the recipe has `weights`."""
    start = recipe.encoder_weights if recipe.weights is None else "random"
    encoder = Encoder(recipe.encoder, pretrained=start == "torchvision")
    for number, stage in enumerate(recipe.stages, start=1):
        if (stage.fine_tune_from or 0) >= len(encoder.stages):
            raise ConfigError(
                f"stages.{number}.fine_tune_from is {stage.fine_tune_from}, but the encoder "
                f"{recipe.encoder.name} has stages 0 to {len(encoder.stages) - 1}"
            )
    if start not in ("torchvision", "random"):
        _load_stages(encoder, _weights_file(start))
    if recipe.stochastic_depth is not None:
        encoder.set_stochastic_depth(recipe.stochastic_depth)
    return encoder


def _load_stages(encoder: Encoder, path: Path) -> None:
    """Load the encoder's stages from a checkpoint, or from a file that has only the stages."""
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
            f"the encoder in {path} is not {encoder.config.name}: set --encoder_weights to "
            "torchvision (downloads ImageNet weights, also of timm), random, or another file"
        ) from error


def build_model(
    recipe: Recipe, vocabulary: Vocabulary, *, encoder: Encoder, origin: Checkpoint | None = None
) -> CaptionModel:
    """Build the model of a recipe from the results of `load_encoder` and `load_initial`."""
    config = ModelConfig(encoder=recipe.encoder, decoder=recipe.decoder)
    try:
        model = CaptionModel(config, vocabulary_size=len(vocabulary), encoder=encoder)
    except (MemoryError, RuntimeError) as error:  # RuntimeError: from torch's allocator
        raise ConfigError(
            f"the decoder of recipe {recipe.name} does not fit into memory ({error}): lower "
            "decoder.hidden_dim or another size of the decoder"
        ) from error
    if origin is not None:
        _load_initial_weights(model, vocabulary, origin)
    return model


def _load_initial_weights(model: CaptionModel, vocabulary: Vocabulary, origin: Checkpoint) -> None:
    """Load a checkpoint's weights; reorder the rows of word matrices to match `vocabulary`."""
    weights = origin.model.state_dict()
    shared = [word for word in vocabulary.words if word in origin.vocabulary]
    theirs, ours = origin.vocabulary.encode(shared), vocabulary.encode(shared)
    initial = model.state_dict()
    for name in ("decoder.embedding.weight", "decoder.output_bias"):
        if name not in initial or name not in weights:  # custom decoders may lack these
            continue
        tensor = initial[name].clone()
        if tensor.ndim == 1:  # a new word starts as unlikely as the least likely word
            ordinary = origin.vocabulary.encode(origin.vocabulary.ordinary_words)
            tensor.fill_(float(weights[name][ordinary].min()))
        tensor[ours] = weights[name][theirs]
        for style in set(vocabulary.styles or ("",)) - set(origin.vocabulary.styles):
            tensor[vocabulary.start(style)] = weights[name][origin.vocabulary.start()]
        weights[name] = tensor
    model.load_state_dict(weights)


def _weights_file(source: str) -> Path:
    """Return the file of a checkpoint that a recipe names."""
    if not (path := checkpoint_file(source)).is_file():
        raise CheckpointNotFoundError(there_is_no("file", path))
    return path
