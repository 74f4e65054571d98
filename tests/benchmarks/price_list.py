"""What each single choice of a recipe is worth, from the plainest one there is.

    python -m tests.benchmarks.price_list ~/flickr8k ~/coco --encoder-weights FILE --out runs/prices

A decoder is trained on cached grids of an ImageNet encoder by a plain recipe: no term on its
attention, nothing smoothed, values as they are. Then the same training is done with one thing
changed at a time, each with every seed. All are measured with their last weights on every second
photo of the validation splits, the first of each two: cross-entropy of people's captions and
CIDEr-D. A table is printed in Markdown, with the differences from the plain recipe of the same
seed, over pairs of photos. Where a change asks for something else than likelihood, as label
smoothing does, its nats a token say little.

Start the same command again and it goes on where it was interrupted; once the plain recipe is done
it can run beside itself, with other `--rows` and the same `--out`. Each DIR holds
captions_SPLIT.json and SPLIT*.tar.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.launcher import environment

PLAIN: dict[str, Any] = {
    "encoder": {"name": "efficientnet_v2_b0", "stride": 32},
    "transform": {"mode": "squash", "size": 224},
    "decoder": {
        "embedding_dim": 512,
        "hidden_dim": 512,
        "attention_dim": 512,
        "value_dim": None,
        "dropout": 0.5,
    },
    "label_smoothing": 0.0,
    "keep_files": True,
}
STAGE: dict[str, Any] = {
    "batch_size": 32,
    "learning_rate": 6e-4,
    "doubly_stochastic": 0.0,
    "attention_entropy": 0.0,
}
# What a row changes; "stage" stands for the fields of the only stage.
ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "label smoothing 0.1": {"label_smoothing": 0.1},
    "values projected to 512": {"decoder": {"value_dim": 512}},
    "attention of 256": {"decoder": {"attention_dim": 256}},
    "attention of 128": {"decoder": {"attention_dim": 128}},
    "entropy 0.03": {"stage": {"attention_entropy": 0.03}},
    "entropy 0.1": {"stage": {"attention_entropy": 0.1}},
    "doubly stochastic 0.05": {"stage": {"doubly_stochastic": 0.05}},
    "doubly stochastic 1": {"stage": {"doubly_stochastic": 1.0}},
    "dropout 0.3": {"decoder": {"dropout": 0.3}},
    "dropout 0.6": {"decoder": {"dropout": 0.6}},
    "64 photos a step, 1e-3": {"stage": {"batch_size": 64, "learning_rate": 1e-3}},
    "rate 1e-3": {"stage": {"learning_rate": 1e-3}},
    "rate 3e-4": {"stage": {"learning_rate": 3e-4}},
    "weight decay 0.1": {"weight_decay": 0.1},
    "words seen 3 times": {"data": {"minimum_count": 3}},
    "words seen 4 times": {"data": {"minimum_count": 4}},
    "hidden state of 1024": {"decoder": {"hidden_dim": 1024}},
    "looks after the word": {"decoder": {"query": "current"}},
    "coordinates of cells": {"decoder": {"positions": "sine"}},
    "squares of 256": {"transform": {"size": 256}},
    "squares of 288": {"transform": {"size": 288}},
    "stride of 16": {"encoder": {"stride": 16}},
    "a start token for each set": {"data": {"styles": True}},
}


def main() -> None:
    """Train, evaluate, and print the table of what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--encoder-weights", required=True, metavar="FILE")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--table", action="store_true", help="print what there is, and end")
    arguments = parser.parse_args()
    if not arguments.table:
        run_all(arguments)
    print_table(arguments)


def run_all(arguments: argparse.Namespace) -> None:
    """Take every training and every evaluation that is not there yet."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    for data in arguments.data:
        write_half(data, arguments.out)
    for seed in arguments.seeds:
        for name in dict.fromkeys(["plain", *arguments.rows]):  # the others are compared with it
            folder = place(arguments.out, name, seed)
            made = recipe(arguments, ROWS[name], seed=seed)
            made |= computed(place(arguments.out, "plain", seed))
            train(made, folder, device=arguments.device)
            for data in arguments.data:
                plain = place(arguments.out, "plain", seed)
                evaluate(arguments, folder, data, plain=plain, styles=has_styles(ROWS[name]))


def computed(plain: Path) -> dict[str, str]:
    """Give the precision of the plain run, which those compared with it have too."""
    path = plain / "recipe.json"
    return {"precision": json.loads(path.read_text())["precision"]} if path.exists() else {}


def has_styles(change: dict[str, Any]) -> bool:
    """Whether a row has a start token for each set."""
    return bool(change.get("data", {}).get("styles"))


def place(out: Path, name: str, seed: int) -> Path:
    """Name the folder of a run."""
    return out / f"{name.replace(' ', '-').replace(',', '')}-{seed}"


def train(recipe: dict[str, Any], folder: Path, *, device: str) -> None:
    """Train, or go on, on grids that the neighbours of `folder` share; what is finished stays."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "finished.json").exists():
        return
    (folder.parent / "grids").mkdir(exist_ok=True)
    if not (folder / "cache").exists():
        (folder / "cache").symlink_to((folder.parent / "grids").resolve())
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump(recipe))
    captioner("train", file, "--out", folder, "--device", device)


def captioner(*arguments: object) -> None:
    """Run the command."""
    command = [sys.executable, "-m", "captioner", *map(str, arguments)]
    done = subprocess.run(
        command, env=environment(PYTHONWARNINGS="default"), stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit status {done.returncode}")


def write_half(data: Path, out: Path) -> None:
    """Write the captions of every second photo of validation, for choosing."""
    path = out / f"{data.resolve().name}_half.json"
    if path.exists():
        return
    content = json.loads((data / "captions_val.json").read_text())
    images = content["images"][::2]
    ids = {one["id"] for one in images}
    notes = [one for one in content["annotations"] if one["image_id"] in ids]
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**content, "images": images, "annotations": notes}))
    part.rename(path)


def recipe(arguments: argparse.Namespace, change: dict[str, Any], *, seed: int) -> dict[str, Any]:
    """Make the recipe of one run, as its file."""
    change, styles = copy.deepcopy(change), has_styles(change)
    stage = {"epochs": arguments.epochs, **STAGE, **change.pop("stage", {})}
    halves = [
        {
            "captions": str((arguments.out / f"{data.resolve().name}_half.json").resolve()),
            "images": str(data.resolve() / "val*"),
            **({"style": data.resolve().name} if styles else {}),
        }
        for data in arguments.data
    ]
    made: dict[str, Any] = copy.deepcopy(PLAIN)
    made |= {"encoder_weights": arguments.encoder_weights, "seed": seed, "stages": [stage]}
    made["data"] = {
        "train": [str(data.resolve()) for data in arguments.data],
        "validation": halves,
        "workers": 0,
    }
    for field, value in change.items():
        made[field] = {**made[field], **value} if isinstance(value, dict) else value
    return made


def evaluate(
    arguments: argparse.Namespace, folder: Path, data: Path, *, plain: Path, styles: bool
) -> None:
    """Score the last checkpoint of a run on half of a validation split, beside the plain one."""
    name = data.resolve().name
    report = folder / name
    if (report / "report.json").exists():
        return
    own = ["--style", name] if styles else []
    beside = [] if folder == plain else ["--compare", plain / name / "report.json"]
    captioner(
        "evaluate", "--captions", arguments.out / f"{name}_half.json", "--images",
        data / "val*", "--checkpoint", folder / "last.safetensors", "--calibration", *own, *beside,
        "--report", report, "--device", arguments.device,
    )  # fmt: skip


def print_table(arguments: argparse.Namespace) -> None:
    """Print a row for every change that was measured."""
    names = [data.resolve().name for data in arguments.data]
    columns = [f"{name}: {what}" for name in names for what in ("nats a token", "CIDEr-D")]
    print(f"| change | seed | minutes | {' | '.join(columns)} |")
    print(f"| --- | --- | --- |{' --- |' * len(columns)}")
    for row in ROWS:
        for seed in arguments.seeds:
            folder = place(arguments.out, row, seed)
            paths = [folder / name / "report.json" for name in names]
            if all(path.exists() for path in paths):
                cells = [text for path in paths for text in told(json.loads(path.read_text()))]
                print(f"| {row} | {seed} | {minutes(folder):.0f} | {' | '.join(cells)} |")


def told(report: dict[str, Any]) -> tuple[str, str]:
    """Write cross-entropy and CIDEr-D, and by how much they differ from the plain recipe's."""
    values = (report["calibration"]["cross_entropy"], 3), (report["nltk"]["CIDEr"], 1)
    compared, *_ = report.get("comparisons", [None])
    if compared is None:
        return f"{values[0][0]:.3f}", f"{values[1][0]:.1f}"
    cells = []
    for name, (value, digits) in zip(("cross_entropy", "CIDEr"), values, strict=True):
        text = f"{value:.{digits}f}"
        if name in compared:  # other words have no difference in nats a token
            low, high = compared["intervals"][name]
            text += f", {compared[name]:+.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
        cells.append(text)
    return cells[0], cells[1]


def minutes(folder: Path) -> float:
    """Add up how long the steps of a run's epochs took."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return sum(one["timing"]["seconds"] for one in events if one["event"] == "epoch") / 60


if __name__ == "__main__":
    main()
