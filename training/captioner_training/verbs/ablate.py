"""`captioner ablate RECIPE`: train every variant of attention and compare them."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from captioner.inference.device import add_machine_arguments
from captioner.paths import expanded

HELP = "Train every variant of attention with one recipe and compare them in a table."
EXAMPLES = """examples:
  captioner ablate ablation --data.root ~/flickr8k --out runs/ablation
  captioner ablate ablation --data.root ~/flickr8k --seeds 1 2 3
  captioner ablate smoke --variants none-previous additive-previous transformer

The variants are {none, additive, multiplicative, dot, scaled_dot, heads} x {previous, current},
{sine, learned, binary}-previous (additive-previous with positions of the cells), top_down, and a
transformer with as many parameters; docs/attention.md describes them. The same command resumes an
interrupted ablation. The table is printed and written to DIR/table.md. Any field of the recipe can
be set, as with captioner train."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help="a bundled recipe (ablation or smoke), or a .yaml file")
    add("--out", type=Path, metavar="DIR", help="default: runs/ablate-RECIPE")
    add("--seeds", type=int, nargs="+", default=[1], metavar="N", help="default: 1")
    add("--variants", nargs="+", metavar="NAME", help="default: all")
    add("--deletion", type=int, default=500, metavar="N",
        help="validation images for the deletion test; default: 500")  # fmt: skip
    add_machine_arguments(parser, dtype=False)


def run(arguments: argparse.Namespace) -> int:
    """Train, measure and print the table."""
    from captioner_training.ablation import VARIANTS, Ablation
    from captioner_training.distributed import start_processes
    from captioner_training.evaluation.split import validate
    from captioner_training.recipe_file import load_recipe
    from captioner_training.train import train

    def prepare() -> Ablation:
        recipe = load_recipe(arguments.recipe, arguments.fields)
        return Ablation(
            recipe,
            out=expanded(arguments.out or Path("runs") / f"ablate-{recipe.name}"),
            processes=processes,
            train=partial(train, validate=validate),
            variants=arguments.variants or VARIANTS,
            seeds=arguments.seeds,
            deletion=arguments.deletion,
        )

    with start_processes(arguments.device) as processes:
        text = processes.main_first(prepare).run()
        if processes.main:
            print(text, end="")
    return 0
