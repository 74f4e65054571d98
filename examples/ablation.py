"""Train variants of the decoder's attention with one recipe and compare them in a table.

Every run is `captioner train` with other fields of the recipe and `captioner evaluate --deletion`.
The runs share cached grids. The same command skips finished runs and resumes an interrupted one.

    python examples/ablation.py examples/ablation.yaml --data.root ~/flickr8k --out runs/ablation
    python examples/ablation.py smoke --variants none-previous dot-current   # a few minutes each
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from captioner.checkpoint import load_checkpoint
from captioner.cli import main as captioner

SCORES = {name: {"score": name} for name in ("none", "additive", "multiplicative", "dot")} | {
    "scaled_dot": {"score": "scaled_dot"},
    "heads": {"score": "scaled_dot", "heads": 4},
}
VARIANTS: dict[str, dict[str, Any]] = {
    f"{name}-{query}": {**fields, "query": query}
    for query in ("previous", "current")
    for name, fields in SCORES.items()
}
VARIANTS |= {f"{name}-previous": {"positions": name} for name in ("sine", "learned", "binary")}
VARIANTS["top_down"] = {"kind": "top_down"}
# In examples/ablation.yaml, this width has about as many parameters as additive-previous.
VARIANTS["transformer"] = {
    "kind": "transformer", "score": "scaled_dot", "heads": 4, "positions": "sine",
    "value_dim": "null", "hidden_dim": 476,
}  # fmt: skip


def train(recipe: str, name: str, *, seed: int, out: Path, fields: list[str]) -> Path:
    """Train a variant and return the folder of its run."""
    run = out / f"{name}-{seed}"
    run.mkdir(parents=True, exist_ok=True)
    for link, shared in (("cache", out / "cache"), ("scenes", out / f"scenes-{seed}")):
        shared.mkdir(exist_ok=True)
        if not (run / link).exists():  # a run does not delete grids behind a link
            (run / link).symlink_to(shared.resolve())
    settings = [
        text for key, value in VARIANTS[name].items() for text in (f"--decoder.{key}", value)
    ]
    print(f"{name}, seed {seed}", file=sys.stderr)
    run_command("train", recipe, "--out", run, "--seed", seed, *fields, *settings)
    return run


def measure(run: Path) -> dict[str, Any]:
    """Score the best checkpoint of a run on its validation split; return the report."""
    report = run / "evaluation" / "report.json"
    if not report.exists():
        data = json.loads((run / "recipe.json").read_text())["data"]
        place = run / "scenes" if data["scenes"] else Path(data["root"]) / data["validation"][0]
        run_command("evaluate", place, "--checkpoint", run, "--deletion", "--report", report.parent)
    values: dict[str, Any] = json.loads(report.read_text())
    return values


def run_command(*arguments: object) -> None:
    """Run a command of Captioner in this process; its output goes to standard error."""
    with redirect_stdout(sys.stderr):
        status = captioner([str(argument) for argument in arguments])
    if status != 0:
        raise SystemExit(status)


def row(name: str, runs: list[Path]) -> str:
    """Return the line of a variant: the interval over photos, or the range of several seeds."""
    reports = [measure(run) for run in runs]
    cells = [name]
    for part, key, digits in (
        ("nltk", "BLEU-4", 1),
        ("nltk", "CIDEr", 1),
        ("deletion", "effect", 3),
    ):
        parts = [report[part] if part == "nltk" else report[part]["content"] for report in reports]
        values = [measures[key] for measures in parts]
        low, high = parts[0]["intervals"][key] if len(runs) == 1 else (min(values), max(values))
        mean = sum(values) / len(values)
        cells.append(f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
    decoder = load_checkpoint(runs[0] / "best.safetensors").model.decoder
    cells.append(f"{sum(parameter.numel() for parameter in decoder.parameters()) / 1e6:.2f} M")
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> None:
    """Train and measure all variants; print the table and write it to OUT/table.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", help="a recipe of captioner train, or a .yaml file")
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options, fields = parser.parse_known_args(arguments)  # the rest: fields of the recipe
    lines = ["| variant | BLEU-4 | CIDEr-D | deletion effect | parameters |", "|---" * 5 + "|"]
    for name in options.variants:
        runs = [
            train(options.recipe, name, seed=seed, out=options.out, fields=fields)
            for seed in options.seeds
        ]
        lines.append(row(name, runs))
    table = "\n".join(lines) + "\n"
    (options.out / "table.md").write_text(table)
    print(table, end="")


if __name__ == "__main__":
    main()
