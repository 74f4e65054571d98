"""The report of a training run: report.html beside its log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from captioner.errors import DataError
from captioner.files import replace_file
from captioner.generation.beam_search import Hypothesis
from captioner.vision.transform import Transform
from captioner.vocabulary import join
from captioner_training.data.captioned import Captioned
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.recipe import Recipe
from captioner_training.report.gallery import Gallery
from captioner_training.report.plots import Plot, curves_plot
from captioner_training.report.template import render

Record = Mapping[str, Any]

_SPLITS = {"test": "test", "val": "validation"}


def write_run(
    page: Path,
    recipe: Recipe,
    captioned: Sequence[Captioned],
    *,
    gain: Record | None,
    notes: Sequence[str],
    best_at: tuple[int, int] | None,
) -> None:
    """Write the report of a run from the log beside it.

    Args:
        page: the HTML file.
        recipe: the recipe of the run.
        captioned: some validation photos with the captions of the best checkpoint.
        gain: see measure_gain; None if it was not measured.
        notes: shown above everything else.
        best_at: stage and epoch of the best checkpoint; None: the model that the run started from.

    Raises:
        DataError: the log is missing or damaged.
        OutputError: the page cannot be written.
    """
    try:
        lines = (page.parent / "log.jsonl").read_text(encoding="utf-8").splitlines()
        log = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise DataError(f"the log of the run cannot be read: {error}") from error
    epochs = [record for record in log if record["event"] == "epoch"]
    if not epochs:
        raise DataError("the log of the run has no epoch")
    framing, tokenizer = Transform(recipe.transform), recipe.data.tokenizer
    images = [caption.image for caption in captioned]
    first = _first_epoch(epochs[0].get("photos", ()), captioned)
    content = render(
        "run.html",
        heading=f"Run {recipe.name}",
        lead=_lead(epochs),
        notes=list(notes),
        cards=list(_cards(gain)),
        kept="original model (no epoch is better)" if best_at is None else "best epoch",
        plots=list(_plots(log, epochs)),
        best=Gallery(images=images, captioned=captioned, framing=framing),
        best_captions=[join(caption.words, tokenizer) for caption in captioned],
        first=Gallery(images=images, captioned=first, framing=framing),
        first_captions=[join(caption.words, tokenizer) for caption in first],
        facts=list(_facts(recipe, log, epochs, best_at)),
    )
    with replace_file(page) as file:
        file.write(content.encode(errors="backslashreplace"))


def _first_epoch(records: Sequence[Record], captioned: Sequence[Captioned]) -> list[Captioned]:
    """Return the first epoch's captions from the log, or [] if they are of other photos."""
    if [record["image"] for record in records] != [caption.image.name for caption in captioned]:
        return []
    captions = []
    for record, caption in zip(records, captioned, strict=True):
        attention, gate = record["attention"], record["gate"]
        captions.append(
            Captioned(
                image=caption.image,
                hypothesis=Hypothesis(
                    [], 0.0, torch.zeros(0), gate=None if gate is None else torch.tensor(gate)
                ),
                words=record["words"],
                attention=None if attention is None else torch.tensor(attention) / 1000,
            )
        )
    return captions


def _lead(epochs: Sequence[Record]) -> str:
    stages = len({epoch["stage"] for epoch in epochs})
    return (
        f"{len(epochs)} epochs in {stages} {'stages' if stages > 1 else 'stage'}, "
        f"{epochs[-1]['step']:,} steps."
    )


def _cards(gain: Record | None) -> Iterator[tuple[str, str, str]]:
    names = {"before": "CIDEr before", "after": "CIDEr", "gain": "CIDEr gained"}
    if gain is None or gain["images"] < MIN_IMAGES:
        return
    for key, name in names.items():
        if key in gain:
            low, high = gain["intervals"][key]
            about = f"{low:.1f} to {high:.1f}, {gain['images']:,} {_SPLITS[gain['split']]} photos"
            yield f"{gain[key]:.1f}", name, about


def _plots(log: Sequence[Record], epochs: Sequence[Record]) -> Iterator[tuple[Plot, str]]:
    steps = [record for record in log if record["event"] == "step"]
    stages = dict.fromkeys(epoch["stage"] for epoch in epochs)
    ends = [max(epoch["step"] for epoch in epochs if epoch["stage"] == stage) for stage in stages]

    def points(records: Sequence[Record], *names: str) -> list[tuple[float, float]]:
        pairs = []
        for record in records:
            value: Any = record
            for name in names:
                value = value[name]
            pairs.append((record["step"], value))
        return pairs

    both = Markup(
        '<span class="key before"></span>training (mean of an epoch)'
        '<span class="key after"></span>validation; nats per token'
    )
    cross_entropy = {
        "before": points(epochs, "cross_entropy"),
        "after": points(epochs, "validation", "cross_entropy"),
    }
    cider = points(epochs, "validation", "CIDEr")
    for curves, title, about in (
        ({"before": points(steps, "loss")}, "loss", "Training loss, all terms."),
        (cross_entropy, "cross-entropy", both),
        (
            {"after": cider},
            "CIDEr",
            "Measured after each epoch, in the training precision and without consensus. The "
            "scores above and captioner evaluate use the saved checkpoint with its consensus.",
        ),
        ({"before": points(steps, "learning_rate")}, "learning rate", "Rate of the decoder."),
    ):
        yield curves_plot(curves, title=title, ends=ends), about


def _facts(
    recipe: Recipe,
    log: Sequence[Record],
    epochs: Sequence[Record],
    best_at: tuple[int, int] | None,
) -> Iterator[tuple[str, str]]:
    yield "recipe", recipe.name
    yield "data", recipe.data.root if recipe.data.scenes is None else "synthetic scenes"
    yield "started from", recipe.weights or f"encoder {recipe.encoder_weights}"
    if log[0]["event"] == "origin":
        yield "CIDEr of that model during training", f"{log[0]['validation']['CIDEr']:.1f}"
    for epoch in epochs:
        if (epoch["stage"], epoch["epoch"]) == best_at:
            yield "best epoch", f"stage {epoch['stage']} epoch {epoch['epoch']}"
            yield "its CIDEr during training", f"{epoch['validation']['CIDEr']:.1f}"
    yield "seed", str(recipe.seed)
