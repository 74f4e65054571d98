"""`captioner train RECIPE`: train a model by a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path

from captioner.errors import ConfigError

HELP = "Train a captioning model by a recipe: a shipped one by its name, or a YAML file."
EXAMPLES = """examples:
  captioner train smoke --out runs/smoke
  captioner train flickr8k --data.root ~/flickr8k --out runs/flickr8k
  captioner train my-recipe.yaml --seed 2 --stages.0.epochs 3
  torchrun --nproc-per-node 8 -m captioner train coco --data.root ~/coco --out runs/coco

The same command again goes on with a run that was interrupted, from its last state in DIR.
Any field of the recipe can be set anew: --FIELD VALUE, with dots inside (--data.workers 4).
The path of the best checkpoint is printed on standard output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="smoke, flickr8k, coco, coco-fast, coco-scst, bundled, or a .yaml file",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/RECIPE")
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="default: auto")


def run(arguments: argparse.Namespace) -> int:
    """Train; print the path of the best checkpoint."""
    fields = _fields(arguments.fields)

    from captioner_training.machinery.processes import start_processes
    from captioner_training.recipe import load_recipe
    from captioner_training.train import train

    recipe = load_recipe(arguments.recipe, fields)
    out = arguments.out or Path("runs") / recipe.name
    with start_processes(arguments.device) as processes:
        best = train(recipe, out=out, processes=processes)
        if processes.main:
            print(best)
    return 0


def _fields(rest: list[str]) -> dict[str, str]:
    """Read `--a.b value` and `--a.b=value`.

    Raises:
        ConfigError: something is left that is no field with a value.

    """
    fields = {}
    words = iter(rest)
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} is neither an option nor a field of the recipe (--FIELD)")
        if not equals:
            following = next(words, None)
            if following is None:
                raise ConfigError(f"{word} has no value")
            value = following
        fields[key.replace("-", "_")] = value
    return fields
