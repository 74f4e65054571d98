"""The page of a run: how it learned, and what it says of photos that it was not trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup

from captioner.errors import DataError
from captioner.files import replace_file
from captioner.generation.hypothesis import Hypothesis
from captioner.vision.transform import Transform
from captioner.vocabulary import join
from captioner_training.data.captioned import Captioned
from captioner_training.pages.gallery import Gallery, rendered
from captioner_training.pages.plots import Plot, curves_plot
from captioner_training.recipe import Recipe

__all__ = ["write_run"]

Record = Mapping[str, Any]


def write_run(
    page: Path,
    recipe: Recipe,
    captioned: Sequence[Captioned],
    *,
    gain: Record | None,
    notes: Sequence[str],
    untouched: bool,
) -> None:
    """Write report.html from the log beside it.

    Args:
        page: the file.
        recipe: of the run.
        captioned: some photos of validation, by the best checkpoint.
        gain: see measure_gain; None where nothing is claimed.
        notes: what is to be said of the run, above all else.
        untouched: whether that is the model that the run began from.

    Raises:
        DataError: the log is not there, or is not whole.
        OutputError: the page cannot be written.
    """
    try:
        lines = (page.parent / "log.jsonl").read_text(encoding="utf-8").splitlines()
        log = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise DataError(f"the log of the run cannot be read: {error}") from error
    epochs = [one for one in log if one["event"] == "epoch"]
    if not epochs:
        raise DataError("the log of the run has no epoch to be drawn")
    best = Gallery(
        images=[one.image for one in captioned],
        captioned=captioned,
        framing=Transform(recipe.transform),
    )
    first = _first(epochs[0].get("photos", ()), captioned)
    tokenizer = recipe.data.tokenizer
    content = rendered(
        "run.html",
        heading=f"The run {recipe.name}",
        lead=_lead(epochs),
        notes=list(notes),
        cards=list(_cards(gain, log, epochs)),
        kept="the model as it was, which no epoch is better than"
        if untouched
        else "in the best epoch",
        plots=list(_plots(log, epochs)),
        best=best,
        best_said=[join(one.words, tokenizer) for one in captioned],
        first=Gallery(images=best.images, captioned=first, framing=best.framing),
        first_said=dict(enumerate(join(one.words, tokenizer) for one in first)),
        facts=list(_facts(recipe, log)),
    )
    with replace_file(page) as file:
        file.write(content.encode(errors="backslashreplace"))


def _first(told_of: Sequence[Record], captioned: Sequence[Captioned]) -> list[Captioned]:
    """Give what the log has of the first epoch, where it is of the same photos."""
    if [one["image"] for one in told_of] != [one.image.name for one in captioned]:
        return []
    found = []
    for record, one in zip(told_of, captioned, strict=True):
        attention, gate = record["attention"], record["gate"]
        hypothesis = Hypothesis(
            [], 0.0, torch.zeros(0), gate=None if gate is None else torch.tensor(gate)
        )
        maps = None if attention is None else torch.tensor(attention) / 1000
        found.append(
            Captioned(image=one.image, hypothesis=hypothesis, words=record["words"], attention=maps)
        )
    return found


def _lead(epochs: Sequence[Record]) -> str:
    seconds = sum(one["timing"]["seconds"] for one in epochs)
    stages = len({one["stage"] for one in epochs})
    return (
        f"{len(epochs)} epochs in {stages} {'stages' if stages > 1 else 'stage'}, "
        f"{epochs[-1]['step']:,} steps, {seconds / 60:.1f} minutes of training."
    )


def _cards(
    gain: Record | None, log: Sequence[Record], epochs: Sequence[Record]
) -> Iterator[tuple[str, str, str]]:
    if gain is None and log[0]["event"] == "origin":
        before = log[0]["validation"]["CIDEr"]
        yield f"{before:.1f}", "CIDEr before", "of the model as it was, on validation"
    best = max(epochs, key=lambda one: one["validation"]["CIDEr"])
    yield (
        f"{best['validation']['CIDEr']:.1f}",
        "CIDEr on validation",
        f"at its best, stage {best['stage']} epoch {best['epoch']}",
    )
    names = {"before": "CIDEr before", "after": "CIDEr after", "gain": "gained"}
    for key, name in names.items() if gain is not None else ():
        if gain is not None and key in gain:
            low, high = gain["intervals"][key]
            where = "test" if gain["split"] == "test" else "validation"
            yield f"{gain[key]:.1f}", name, f"{low:.1f} to {high:.1f}, on {where}"


def _plots(log: Sequence[Record], epochs: Sequence[Record]) -> Iterator[tuple[Plot, str]]:
    steps = [one for one in log if one["event"] == "step"]
    ends = [max(one["step"] for one in epochs if one["stage"] == stage) for stage in
            dict.fromkeys(one["stage"] for one in epochs)]  # fmt: skip

    def of(records: Sequence[Record], *names: str) -> list[tuple[float, float]]:
        found = []
        for record in records:
            value: Any = record
            for name in names:
                value = value[name]
            found.append((record["step"], value))
        return found

    for curves, title, about in (
        ({"before": of(steps, "loss")}, "loss", "What training makes smaller, all its terms."),
        (
            {
                "before": of(epochs, "cross_entropy"),
                "after": of(epochs, "validation", "cross_entropy"),
            },
            "cross-entropy",
            Markup('<span class="key before"></span>training, an epoch\'s mean<span '
                   'class="key after"></span>validation; nats a token'),
        ),
        ({"after": of(epochs, "validation", "CIDEr")}, "CIDEr", "On validation."),
        ({"before": of(steps, "learning_rate")}, "learning rate", "Of the decoder."),
    ):  # fmt: skip
        yield curves_plot(curves, title=title, ends=ends), about


def _facts(recipe: Recipe, log: Sequence[Record]) -> Iterator[tuple[str, str]]:
    yield "recipe", recipe.name
    yield "data", recipe.data.root if recipe.data.scenes is None else "drawn scenes"
    yield "begun from", recipe.weights or f"the encoder {recipe.encoder_weights}"
    if log[0]["event"] == "origin":
        yield "CIDEr of that model on validation", f"{log[0]['validation']['CIDEr']:.1f}"
    yield "seed", str(recipe.seed)
