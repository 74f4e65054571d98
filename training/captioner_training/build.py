"""From a recipe to data and model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torchvision.ops import StochasticDepth

from captioner.checkpoint import bundled_checkpoint, load_checkpoint
from captioner.decoder import DecoderConfig
from captioner.encoder import Encoder
from captioner.errors import CheckpointFormatError, CheckpointMismatchError, CheckpointNotFoundError
from captioner.model import CaptionModel, ModelConfig
from captioner.vocabulary import Vocabulary
from captioner_training.dataset import CaptionedImage, read_coco
from captioner_training.recipe import Recipe, sources
from captioner_training.scenes import write_scenes

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
    scenes = recipe.data.scenes
    if scenes is None:
        train = sources(recipe.data.root, recipe.data.train)
        validation = sources(recipe.data.root, recipe.data.validation)
    else:
        folder = out / "scenes"
        splits = {"train": scenes.train, "val": scenes.validation}
        write_scenes(folder, splits=splits, seed=recipe.seed)
        train = [(folder / "captions_train.json", folder / "train-00.tar")]
        validation = [(folder / "captions_val.json", folder / "val-00.tar")]
    images = [image for source in train for image in read_coco(*source)]
    vocabulary = Vocabulary.build(
        (words for image in images for words in image.words),
        minimum_count=recipe.data.minimum_count,
    )
    return Data(
        train=images,
        validation=[image for source in validation for image in read_coco(*source)],
        vocabulary=vocabulary,
    )


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
    config = ModelConfig(
        encoder=recipe.encoder,
        decoder=DecoderConfig(
            vocabulary_size=len(vocabulary),
            grid_dim=encoder.channels(),
            **asdict(recipe.decoder),
        ),
    )
    model = CaptionModel(config, encoder=encoder)
    if recipe.weights is not None:
        _load_weights(model, vocabulary, Path(recipe.weights))
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
    try:
        encoder.stages.load_state_dict(stages)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()
        raise CheckpointMismatchError(
            f"the encoder in {path} is not a {encoder.config.name}: {reason}"
        ) from error
