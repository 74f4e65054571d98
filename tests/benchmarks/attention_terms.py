"""Which term of the loss makes attention that is right, and attention that matters.

    python tests/benchmarks/attention_terms.py ~/coco --boxes person_boxes --out runs/terms

A decoder is trained on cached grids without any term on its attention. From there the same short
training goes on with each of: nothing, the entropy term at 0.01, 0.03 and 0.1, the doubly
stochastic term, and attention supervised by boxes (Liu et al. 2017), each with three seeds. Then
`captioner evaluate` scores, grounds and tests each by deletion. A table of means over the seeds,
with the standard deviation between them, is printed in Markdown.

Start the same command again and it goes on where it was interrupted. DIR holds captions_SPLIT.json
and SPLIT*.tar; `--boxes NAME` stands for NAME_train.json and NAME_val.json there. Only training
images with boxes are in the second part, which is the same for all.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from runs import captioner, train

TERMS: dict[str, dict[str, float]] = {
    "none": {},
    "entropy 0.01": {"attention_entropy": 0.01},
    "entropy 0.03": {"attention_entropy": 0.03},
    "entropy 0.1": {"attention_entropy": 0.1},
    "doubly stochastic 1": {"doubly_stochastic": 1.0},
    "boxes 0.3": {"attention_supervision": 0.3},
}
NO_TERM = {"attention_entropy": 0.0, "doubly_stochastic": 0.0}
# Of the report: its name in the table, its place, and how many digits are told.
COLUMNS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("BLEU-4", ("nltk", "BLEU-4"), 1),
    ("CIDEr-D", ("nltk", "CIDEr"), 1),
    ("in boxes", ("person_boxes", "attention"), 3),
    ("pointing", ("person_boxes", "pointing"), 3),
    ("entropy", ("deletion", "content", "entropy"), 2),
    ("gate", ("deletion", "content", "gate"), 2),
    ("effect, content words", ("deletion", "content", "effect"), 3),
    ("effect, function words", ("deletion", "function", "effect"), 3),
)


def main() -> None:
    """Train, evaluate, and print the table of what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--boxes", required=True, metavar="NAME")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--base-epochs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2, help="with each term")
    parser.add_argument("--encoder-weights", default="bundled", metavar="FILE")
    parser.add_argument("--hidden-dim", type=int, default=512)
    parser.add_argument("--minimum-count", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--base-only", action="store_true", help="end before the terms")
    parser.add_argument("--table", action="store_true", help="print what there is, and end")
    arguments = parser.parse_args()
    if not arguments.table:
        run_all(arguments)
    if not arguments.base_only:
        print_table(arguments.out)


def run_all(arguments: argparse.Namespace) -> None:
    """Take every training and every evaluation that is not there yet, seed by seed."""
    out, data = arguments.out, arguments.data.resolve()
    out.mkdir(parents=True, exist_ok=True)
    boxed = write_boxed(data, arguments.boxes, out)
    base = out / "base"
    whole = {"captions": str(data / "captions_train.json"), "images": str(data / "train*")}
    stage = {"epochs": arguments.base_epochs, "batch_size": 64, **NO_TERM}
    train(recipe(arguments, whole, stage, seed=1), base, device=arguments.device)
    if arguments.base_only:
        return
    part = {"captions": str(boxed), "images": str(data / "train*")}
    for seed in range(1, arguments.seeds + 1):
        for name, terms in TERMS.items():
            folder = out / f"{name.replace(' ', '-')}-{seed}"
            stage = {
                "epochs": arguments.epochs, "batch_size": 32, "learning_rate": 5e-4, "warmup": 50,
                **NO_TERM, **terms,
            }  # fmt: skip
            wanted = recipe(arguments, part, stage, seed=seed)
            wanted["weights"] = str(base / "last.safetensors")
            if terms.get("attention_supervision"):
                wanted["data"]["boxes"] = [str(data / f"{arguments.boxes}_train.json")]
            train(wanted, folder, device=arguments.device)
            evaluate(arguments, folder)


def recipe(
    arguments: argparse.Namespace, train_on: dict[str, str], stage: dict[str, Any], *, seed: int
) -> dict[str, Any]:
    """Make the recipe of one run, as its file."""
    size = arguments.hidden_dim
    validation = {
        "captions": str(arguments.data.resolve() / "captions_val.json"),
        "images": str(arguments.data.resolve() / "val*"),
    }
    return {
        "encoder_weights": arguments.encoder_weights,
        "encoder": {"name": "efficientnet_v2_b0", "stride": 32},
        "transform": {"mode": "squash", "size": 224},
        "decoder": {
            "embedding_dim": size,
            "hidden_dim": size,
            "attention_dim": size // 2,
            "value_dim": size,
        },
        "data": {
            "train": [train_on],
            "validation": [validation],
            "workers": 0,
            "minimum_count": arguments.minimum_count,
        },
        "generation": {"beam_size": 3},
        "ema": 0.99,
        "keep_files": True,
        "seed": seed,
        "stages": [stage],
    }


def evaluate(arguments: argparse.Namespace, folder: Path) -> None:
    """Score, ground and test the last checkpoint of a run."""
    report, data = folder / "evaluation.json", arguments.data
    if report.exists():
        return
    text = captioner(
        "evaluate", data, "--split", "val", "--checkpoint", folder / "last.safetensors",
        "--boxes", data / f"{arguments.boxes}_val.json", "--deletion",
        "--device", arguments.device, "--dtype", "float32",
    )  # fmt: skip
    report.write_text(text)


def write_boxed(data: Path, boxes: str, out: Path) -> Path:
    """Write the captions of the training images that have boxes."""
    content = json.loads((data / "captions_train.json").read_text())
    noted = json.loads((data / f"{boxes}_train.json").read_text())["annotations"]
    ids = {one["image_id"] for one in noted}
    part = {
        "images": [one for one in content["images"] if one["id"] in ids],
        "annotations": [one for one in content["annotations"] if one["image_id"] in ids],
    }
    path = out.resolve() / "captions_boxed.json"
    path.write_text(json.dumps(part))
    return path


def print_table(out: Path) -> None:
    """Print a row for every term: means over its seeds, and the deviation between them."""
    names = [name for name, _, _ in COLUMNS]
    print(f"| term | seeds | {' | '.join(names)} |")
    print(f"| --- | --- |{' --- |' * len(names)}")
    for term in TERMS:
        found = sorted(out.glob(f"{term.replace(' ', '-')}-*/evaluation.json"))
        reports = [json.loads(path.read_text()) for path in found]
        if reports:
            cells = [told(reports, place, digits) for _, place, digits in COLUMNS]
            print(f"| {term} | {len(reports)} | {' | '.join(cells)} |")


def told(reports: list[dict[str, Any]], place: tuple[str, ...], digits: int) -> str:
    """Write the mean of a number, and its standard deviation where there are several."""
    values = []
    for report in reports:
        value: Any = report
        for key in place:
            value = value.get(key, {})
        if isinstance(value, int | float):
            values.append(float(value))
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
