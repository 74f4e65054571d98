"""What a recipe starts from, looked at without torch: mistakes are told within a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from captioner.bundled import bundled_checkpoint
from captioner.checkpoint import odd_header, read_header
from captioner.errors import (
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    ConfigError,
)
from captioner.paths import expanded, there_is_no
from captioner_training.checkpoint_settings import checkpoint_settings
from captioner_training.recipe import Recipe

__all__ = ["check_weights", "encoder_starts", "weights_file"]


def check_weights(recipe: Recipe) -> None:
    """Refuse weights that are missing or do not fit, and stages that the encoder does not have.

    Raises:
        ConfigError: the recipe asks for stages that are not there, for an encoder and has the
            weights of another one, or for weights that nobody has.
        CheckpointError: there are no such weights, or they are another architecture's.

    """
    problems = list(_wrong_stages(recipe))
    if recipe.weights is not None:
        differences = list(_differences(recipe, weights_file(recipe.weights)))
        if differences and not problems:
            raise CheckpointMismatchError(_as_one(recipe, differences))
        problems += [_as_one(recipe, differences)] if differences else []
    if recipe.weights is None or recipe.encoder_share < 1:
        problems += _wrong_encoder(recipe)
    if problems:
        told = "\n  ".join(problems)
        line = " " if len(problems) == 1 else "\n  "
        raise ConfigError(f"recipe {recipe.name} cannot be used:{line}{told}")


def _wrong_stages(recipe: Recipe) -> Iterator[str]:
    count = recipe.encoder.stage_count
    for number, stage in enumerate(recipe.stages, start=1):
        if stage.fine_tune_from is not None and stage.fine_tune_from >= count:
            yield (
                f"stages.{number}.fine_tune_from {stage.fine_tune_from}: the encoder has the "
                f"stages 0 to {count - 1}"
            )


def weights_file(source: str) -> Path:
    """Find the file that a recipe calls by its path, or "bundled".

    Raises:
        CheckpointNotFoundError: there is none.

    """
    path = bundled_checkpoint() if source == "bundled" else expanded(source)
    if not path.is_file():
        raise CheckpointNotFoundError(there_is_no("file", path))
    return path


def encoder_starts(recipe: Recipe) -> str:
    """Say what the encoder of a recipe can start from, for a message."""
    mixed = recipe.encoder_share < 1  # with which nothing untrained goes, and nothing of its own
    starts = []
    if recipe.encoder.name != "efficientnet_v2_b0":
        starts.append("torchvision (downloads ImageNet weights), ")
    elif not (mixed and recipe.weights == "bundled"):
        starts.append("bundled, ")
    if not mixed:
        starts.append("random, ")
    return f"--encoder_weights {''.join(starts)}{'or ' if starts else ''}a file of its own"


def _wrong_encoder(recipe: Recipe) -> Iterator[str]:
    start = recipe.encoder_weights
    if start == "torchvision" and recipe.encoder.name == "efficientnet_v2_b0":
        yield (
            "encoder_weights torchvision: torchvision has none for efficientnet_v2_b0: set "
            + encoder_starts(recipe)
        )
    elif start not in ("torchvision", "random"):
        yield from _other_encoder(recipe, weights_file(start))


def _other_encoder(recipe: Recipe, path: Path) -> Iterator[str]:
    """Say that these are another backbone's weights, as far as the file says what it holds."""
    try:
        name = read_header(path)["encoder"]["name"]
    except (CheckpointFormatError, KeyError):  # the backbone's stages alone, as published
        return
    except TypeError as error:
        raise odd_header(path, error) from error
    if name != recipe.encoder.name:
        yield (
            f"encoder.name is {recipe.encoder.name}, but the encoder in {path} is {name}: set "
            + encoder_starts(recipe)
        )


def _differences(recipe: Recipe, path: Path) -> Iterator[str]:
    """Name every setting in which a checkpoint that is gone on from differs from the recipe."""
    header = read_header(path)
    for part, there in checkpoint_settings(path, header, "encoder", "decoder").items():
        given = asdict(getattr(recipe, part))
        for name, value in there.items():
            if given[name] != value:
                yield f"{part}.{name} is {given[name]!r} here and {value!r} there"
    if (tokenizer := header.get("tokenizer", "words")) != recipe.data.tokenizer:
        yield f"data.tokenizer is {recipe.data.tokenizer!r} here and {tokenizer!r} there"


def _as_one(recipe: Recipe, differences: list[str]) -> str:
    remedy = "set them as they are there, or begin without it: --weights null"
    if differences[0].startswith("encoder.name"):
        remedy += " --encoder_weights torchvision (downloads ImageNet weights)"
    return (
        f"--weights {recipe.weights} does not have the recipe's architecture: "
        f"{'; '.join(differences)}: {remedy}"
    )
