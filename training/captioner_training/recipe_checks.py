"""What a recipe names, looked for before torch is imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from captioner.device import find_device
from captioner.errors import CaptionerError, DataError
from captioner.paths import there_is_no
from captioner_training.data.unprepared import check_readable
from captioner_training.distributed import leave_the_word, speaks
from captioner_training.recipe import DataConfig, Recipe, resolve
from captioner_training.recipe_file import load_recipe
from captioner_training.recipe_weights import check_weights

__all__ = ["checked_recipe", "said_once"]


@contextmanager
def said_once() -> Iterator[None]:
    """Let one process say what all processes of torchrun find wrong."""
    try:
        yield
    except CaptionerError:
        if not speaks():
            leave_the_word()
        raise


def checked_recipe(name: str, fields: Mapping[str, str], *, device: str) -> Recipe:
    """Load a recipe, and look for its device, weights and data; see load_recipe.

    Raises:
        ConfigError: the recipe cannot be.
        CheckpointError: its weights are not there.
        DataError: its data are not there.
        DeviceError: this machine has no such device.

    """
    find_device(device)
    recipe = load_recipe(name, fields)
    if speaks():  # what all would find, one looks for
        check_weights(recipe)
        _check_data(recipe.data)
    return recipe


def _check_data(data: DataConfig) -> None:
    for split, entries in ("train", data.train), ("val", data.validation):
        for entry in entries:
            if isinstance(entry, str):
                check_readable(resolve(data.root, entry), split)
    for path in data.boxes:
        if not resolve(data.root, path).is_file():
            raise DataError(there_is_no("file", resolve(data.root, path)))
