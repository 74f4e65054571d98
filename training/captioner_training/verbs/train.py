"""`captioner train RECIPE`: train a model by a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.device_names import check_device
from captioner.errors import CaptionerError, ConfigError, DataError

if TYPE_CHECKING:
    from captioner_training.recipe import DataConfig

HELP = "Train a captioning model by a recipe: a shipped one by its name, or a YAML file."
EXAMPLES = """examples:
  captioner train smoke --out runs/smoke
  captioner train own --data.root ~/mine --out runs/mine
  captioner train my-recipe.yaml --seed 2 --stages.1.epochs 3
  captioner train own --show > my-recipe.yaml
  torchrun --nproc-per-node 8 -m captioner train coco --data.root ~/coco --out runs/coco

The same command again goes on with a run that was interrupted, from its last state in DIR.
Any field of the recipe can be set: --FIELD VALUE, with dots inside (--data.workers 4); stages are
counted from 1; --fields lists them all. The path of the best checkpoint is printed on standard
output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        nargs="?",
        help="smoke, own, flickr8k, coco, coco-fast, coco-scst, bundled, or a .yaml file",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/RECIPE")
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="default: auto")
    parser.add_argument("--show", action="store_true", help="print the recipe's file, and end")
    parser.add_argument(
        "--fields",
        action="store_true",
        dest="list_fields",
        help="print all fields of a recipe with their defaults and reasons, and end",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train; print the path of the best checkpoint."""
    from captioner_training.machinery.torchrun import leave_the_word, speaks
    from captioner_training.recipe_file import load_recipe, recipe_text, shipped_recipes
    from captioner_training.recipe_weights import check_weights

    if arguments.list_fields:
        from captioner_training.recipe_fields import fields_text

        print(fields_text(), end="")
        return 0
    if arguments.recipe is None:
        raise ConfigError(f"name a recipe: a .yaml file, or one of {', '.join(shipped_recipes())}")
    if arguments.show:
        print(recipe_text(arguments.recipe), end="")
        return 0
    try:
        check_device(arguments.device)
        recipe = load_recipe(arguments.recipe, arguments.fields)
        if speaks():  # what all would find, one looks for
            check_weights(recipe)
            _check_data(recipe.data)
    except CaptionerError:
        if not speaks():
            leave_the_word()
        raise

    from captioner_training.machinery.processes import start_processes
    from captioner_training.train import train

    out = (arguments.out or Path("runs") / recipe.name).expanduser()
    with start_processes(arguments.device) as processes:
        best = train(recipe, out=out, processes=processes)
        if processes.main:
            print(best)
    return 0


def _check_data(data: DataConfig) -> None:
    """Look for the folders of a recipe before torch is imported, which takes seconds."""
    from captioner.paths import there_is_no
    from captioner_training.data.unprepared import check_readable
    from captioner_training.recipe import resolve

    for split, entries in ("train", data.train), ("val", data.validation):
        for entry in entries:
            if isinstance(entry, str):
                check_readable(resolve(data.root, entry), split)
    for path in data.boxes:
        if not resolve(data.root, path).is_file():
            raise DataError(there_is_no("file", resolve(data.root, path)))
