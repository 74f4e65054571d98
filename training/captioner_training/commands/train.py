"""`captioner train RECIPE`: train a model by a recipe."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from captioner.errors import ConfigError
from captioner.inference.device import add_machine_arguments
from captioner.shared.paths import expanded

RECIPES = sorted(path.stem for path in (Path(__file__).parents[1] / "recipes").glob("*.yaml"))

HELP = "Train a model with a recipe: the name of a shipped one, or a YAML file."
EXAMPLES = """examples:
  captioner train smoke --out runs/smoke
  captioner train finetune --data.root ~/mine --out runs/mine
  captioner train my-recipe.yaml --seed 2 --stages.1.epochs 3
  captioner train finetune --show > my-recipe.yaml
  torchrun --nproc-per-node 8 -m captioner train coco --data.root ~/coco --out runs/coco

After an interruption, the same command resumes from the last state in DIR. --FIELD VALUE sets any
field of the recipe, with dots between its parts; stages are counted from 1; --fields lists all
fields. The path of the best checkpoint is printed on standard output; DIR/report.html is the report
of the run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("recipe", metavar="RECIPE", nargs="?", help=f"{', '.join(RECIPES)}, or a .yaml file")
    add("--out", type=Path, metavar="DIR", help="default: runs/RECIPE")
    add_machine_arguments(parser, dtype=False)
    add("--log", choices=["tensorboard"], help="also log to TensorBoard (DIR/tensorboard)")
    add("--open", action="store_true", help="open the report in a browser at the end")
    add("--show", action="store_true", help="print the recipe and exit")
    add("--fields", action="store_true", dest="list_fields",
        help="list all fields of a recipe with their defaults and exit")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Train and print the path of the best checkpoint."""
    from captioner_training.recipe import fields_text, load_recipe, recipe_text

    if arguments.list_fields:
        print(fields_text(), end="")
        return 0
    if arguments.recipe is None:
        raise ConfigError(f"name a recipe: a .yaml file, or one of {', '.join(RECIPES)}")
    if arguments.show:
        print(recipe_text(arguments.recipe), end="")
        return 0

    from captioner_training.conclusion import conclude
    from captioner_training.distributed import start_processes
    from captioner_training.log import import_tensorboard
    from captioner_training.train import train

    if arguments.log is not None:
        import_tensorboard()  # before any work
    with start_processes(arguments.device) as processes:
        recipe = processes.main_first(lambda: load_recipe(arguments.recipe, arguments.fields))
        out = expanded(arguments.out or Path("runs") / recipe.name)
        best = train(recipe, out=out, processes=processes, tensorboard=arguments.log is not None)
    if processes.main:
        conclude(recipe, out=out, device=processes.device)
        print(best)
        if arguments.open and (page := out / "report.html").exists():
            webbrowser.open(page.resolve().as_uri())
    return 0
