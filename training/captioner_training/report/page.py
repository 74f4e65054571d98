"""Pages of `captioner evaluate --report` and of training runs, from one template."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from captioner.drawing.overlay import overlay
from captioner.errors import DataError, ImageError
from captioner.photos.open import open_image
from captioner.photos.transform import Transform
from captioner.shared.files import replace_file
from captioner.shared.text import counted, printable
from captioner.vocabulary import join
from captioner_training.data.images import Captioned, CaptionedImage
from captioner_training.evaluation.evaluate import Evaluation, as_json
from captioner_training.evaluation.words import FUNCTION_WORDS
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.recipe import Recipe
from captioner_training.report.measures import (
    failures,
    model_name,
    notes,
    number,
    part_of,
    settings,
    tables,
)
from captioner_training.report.plots import curves_plot, reliability_plot

Record = Mapping[str, Any]

_SHOWN = 12  # number of best, and of worst, captions: fills rows of two, three and four
_CHANGED = 4  # photos whose captions improved or worsened most
_SIDE = 360  # pixels of a photo's longer side, about 20 kB as JPEG
_MAPS = 4  # words per caption whose attention is drawn
_RELIABILITY = {
    "next word of a reference": "calibration",
    "content words": "trust.words",
    "captions (all content words right)": "trust.captions",
}


class Caption(NamedTuple):
    """A caption on a page: who made it, its text, and words with their overlays (data URIs)."""

    title: str
    text: str
    maps: Sequence[tuple[str, str]]


class Photo(NamedTuple):
    """A photo on a page. `picture` is a data URI; None if the photo cannot be opened."""

    name: str
    picture: str | None
    captions: Sequence[Caption]
    references: Sequence[str] = ()
    label: str = ""


Section = tuple[str, str, Sequence[Photo]]
"""Photos with a title and an explanation."""

Figure = tuple[str, str | None, str]
"""A title, a plot (a data URI; None without matplotlib) and an explanation."""


def _write(path: Path, **content: object) -> None:
    """Render page.html. Text is untrusted: all of it is escaped. Raises OutputError."""
    environment = Environment(
        loader=PackageLoader("captioner_training", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_in_a_line,
    )
    page = environment.get_template("page.html").render(content)
    with replace_file(path) as file:
        file.write(page.encode(errors="backslashreplace"))  # names may not be UTF-8


def _in_a_line(value: object) -> object:
    """Put text on one line and make control characters visible."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(" ".join(value.split()))
    return value


# `captioner evaluate --report`


def write_report(folder: Path, evaluation: Evaluation) -> None:
    """Write report.html, report.md (the tables), and report.json with the rows as `per_image`.

    Raises OutputError: a file cannot be written.
    """
    rows = [dict(row) for row in evaluation.rows]
    for other in evaluation.others:
        for row, theirs in zip(rows, other.rows, strict=True):
            pair = {"caption": theirs["caption"], "CIDEr": theirs["CIDEr"]}
            row["others"] = [*row.get("others", ()), pair]
    report = as_json({**evaluation.report, "per_image": rows})
    parts = [f"{title}\n\n{table.markdown()}" for title, table in tables(evaluation.report)]
    for name, text in (
        ("report.json", json.dumps(report, indent=1)),
        ("report.md", "\n\n".join(parts).lstrip()),
    ):
        with replace_file(folder / name) as file:
            file.write(f"{text}\n".encode(errors="backslashreplace"))
    name = Path(str(report["data"])).stem or str(report["data"])
    _write(
        folder / "report.html",
        heading=f"Captions of {name}",
        lead=f"{model_name(report)} on {counted(report['scored'], 'photo')} with "
        f"{counted(report['split']['references'], 'reference caption')}. In brackets: 95 % "
        "intervals over images.",
        notes=[
            *notes(report),
            *(f"{measure} failed: {reason}" for measure, reason in failures(report)),
        ],
        tables=tables(evaluation.report),
        figures=list(_figures(report)),
        sections=list(_sections(evaluation)),
        facts=list(settings(report)),
    )


def _sections(evaluation: Evaluation) -> Iterator[Section]:
    rows = evaluation.rows
    order = sorted(range(len(rows)), key=lambda at: (rows[at]["CIDEr"], rows[at]["ROUGE-L"]))
    shown = min(_SHOWN, len(rows) // 2)
    middle = {order[0], order[len(order) // 2], order[-1]} if evaluation.captioned else set()
    yield (
        "Attention",
        "A bad, a medium and a good caption of every model, with the attention of content words.",
        [_photo(evaluation, at, maps=True) for at in order if at in middle],
    )
    yield from _changed(evaluation)
    yield (
        "Best captions",
        "The highest CIDEr-D, with the references.",
        [_photo(evaluation, at) for at in order[::-1][:shown]],
    )
    yield (
        "Worst captions",
        "The lowest CIDEr-D. Some are right but mention something else than the references.",
        [_photo(evaluation, at) for at in order[:shown]],
    )


def _figures(report: Record) -> Iterator[Figure]:
    about = "Below the dashed line the model is too sure."
    for title, path in _RELIABILITY.items():
        if "bins" in (part := part_of(report, path)):
            yield f"Reliability: {title}", reliability_plot(part["bins"]), about


def _photo(evaluation: Evaluation, at: int, *, label: str = "", maps: bool = False) -> Photo:
    """Return a photo with its caption; with `maps` or a label, with those of all models."""
    row, is_compared = evaluation.rows[at], bool(label or maps)
    captions = []
    for model in (evaluation, *(evaluation.others if is_compared else ())):
        has_maps = maps and model.captioned and model.transform
        drawn = maps_of(model.captioned[at], model.transform) if has_maps else []
        captions.append(Caption(model_name(model.report), model.rows[at]["caption"], drawn))
    if len(captions) == 1:
        captions = [captions[0]._replace(title="")]
    return Photo(
        name=row["name"],
        picture=picture_of(evaluation.images[at]),
        captions=captions,
        references=() if is_compared else row["references"],
        label=label or f"{row['CIDEr']:.0f}",
    )


def _changed(evaluation: Evaluation) -> Iterator[Section]:
    """Yield the photos that improved most, and worsened most, from each compared model."""
    for other in evaluation.others:
        change = {
            at: row["CIDEr"] - before["CIDEr"]
            for at, (row, before) in enumerate(zip(evaluation.rows, other.rows, strict=True))
            if row["caption"] != before["caption"]
        }
        order = sorted(change, key=change.__getitem__)
        better = [at for at in order[::-1][:_CHANGED] if change[at] > 0]
        worse = [at for at in order[:_CHANGED] if change[at] < 0]
        for word, places in (("improved", better), ("worsened", worse)):
            photos = [_photo(evaluation, at, label=f"{change[at]:+.0f}") for at in places]
            about = f"Change in CIDEr-D from {model_name(other.report)}."
            yield f"Most {word}", about, photos


# Photos


def picture_of(image: CaptionedImage) -> str | None:
    """Return a photo as a data URI, or None if it cannot be opened."""
    photo = _open(image)
    return None if photo is None else _data_uri(photo)


def maps_of(caption: Captioned, transform: Transform) -> list[tuple[str, str]]:
    """Return some content words of a caption, each with its overlay on the photo (a data URI).

    The words with the highest gate are chosen, or the first ones if the model has no gate.
    """
    attention, gates = caption.attention, caption.hypothesis.gate
    photo = None if attention is None else _open(caption.image)
    if photo is None or attention is None:
        return []
    box = transform.box(*photo.size)
    content = [at for at, word in enumerate(caption.words) if word not in FUNCTION_WORDS]
    if gates is not None:
        content = sorted(content, key=lambda at: -float(gates[at]))
    return [
        (caption.words[at], _data_uri(overlay(photo, attention[at], box=box)))
        for at in sorted(content[:_MAPS])
    ]


def _open(image: CaptionedImage) -> Image.Image | None:
    try:
        photo = open_image(image.store.read(image.name), at_least=_SIDE)
    except (DataError, ImageError):
        return None
    photo.thumbnail((_SIDE, _SIDE))
    return photo


def _data_uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{b64encode(file.getvalue()).decode()}"


# Training runs


def write_run(
    path: Path,
    recipe: Recipe,
    captioned: Sequence[Captioned],
    *,
    gain: Record | None,
    notes: Sequence[str],
    best_at: Sequence[int] | None,
    has_cider: bool,
) -> None:
    """Write the report of a run from the log beside it.

    Args:
        path: the HTML file.
        recipe: the recipe of the run.
        captioned: some validation photos with the captions of the best checkpoint.
        gain: see conclusion.measure_gain; None if it was not measured.
        notes: shown above everything else.
        best_at: stage and epoch of the best checkpoint; None: the model that the run started from.
        has_cider: whether there are enough validation photos for CIDEr.

    Raises DataError: the log is missing or damaged.
    """
    try:
        lines = (path.parent / "log.jsonl").read_text(encoding="utf-8").splitlines()
        log = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise DataError(f"the log of the run cannot be read: {error}") from error
    epochs = [record for record in log if record["event"] == "epoch"]
    if not epochs:
        raise DataError("the log of the run has no epoch")
    stages = counted(len({epoch["stage"] for epoch in epochs}), "stage")
    steps = counted(epochs[-1]["step"], "step")
    about = (
        "Captions of validation photos by best.safetensors, with the attention of content words, "
        "and references."
    )
    _write(
        path,
        heading=f"Run {recipe.name}",
        lead=f"{counted(len(epochs), 'epoch')} in {stages}, {steps}.",
        notes=notes,
        tables=(),
        figures=list(_run_figures(log, epochs, has_cider=has_cider)),
        sections=[("Captions", about, [_run_photo(recipe, item) for item in captioned])],
        facts=list(_facts(recipe, log, epochs, gain, best_at, has_cider=has_cider)),
    )


def _run_photo(recipe: Recipe, caption: Captioned) -> Photo:
    text = join(caption.words, recipe.data.tokenizer)
    return Photo(
        name=caption.image.name,
        picture=picture_of(caption.image),
        captions=[Caption("", text, maps_of(caption, Transform(recipe.transform)))],
        references=caption.image.captions[:5],
    )


def _run_figures(
    log: Sequence[Record], epochs: Sequence[Record], *, has_cider: bool
) -> Iterator[Figure]:
    steps = [record for record in log if record["event"] == "step"]
    last = {epoch["stage"]: epoch["step"] for epoch in epochs}

    def plot(title: str, about: str, **curves: Sequence[tuple[float, float]]) -> Figure:
        return title, curves_plot(curves, ends=[*last.values()]), about

    yield plot("loss", "All terms.", loss=[(step["step"], step["loss"]) for step in steps])
    yield plot(
        "cross-entropy",
        "Nats per token; training: mean of an epoch. If validation rises while training falls, "
        "the model overfits.",
        training=[(epoch["step"], epoch["cross_entropy"]) for epoch in epochs],
        validation=[(epoch["step"], epoch["validation"]["cross_entropy"]) for epoch in epochs],
    )
    if has_cider:
        yield plot(
            "CIDEr",
            "After each epoch, in the training precision and without consensus.",
            CIDEr=[(epoch["step"], epoch["validation"]["CIDEr"]) for epoch in epochs],
        )
    yield plot(
        "learning rate",
        "Rate of the decoder. Dashed lines mark the ends of stages.",
        rate=[(step["step"], step["learning_rate"]) for step in steps],
    )


def _facts(
    recipe: Recipe,
    log: Sequence[Record],
    epochs: Sequence[Record],
    gain: Record | None,
    best_at: Sequence[int] | None,
    *,
    has_cider: bool,
) -> Iterator[tuple[str, str]]:
    names = {"before": "CIDEr before", "after": "CIDEr", "gain": "CIDEr gained"}
    if gain is not None and gain["images"] >= MIN_IMAGES:
        split = "test" if gain["split"] == "test" else "validation"
        for key in filter(gain.__contains__, names):
            yield names[key], f"{number(gain, key, 1)} on {gain['images']:,} {split} photos"
    yield "data", recipe.data.root if recipe.data.scenes is None else "synthetic scenes"
    yield "started from", recipe.weights or f"encoder {recipe.encoder_weights}"
    if log[0]["event"] == "origin" and has_cider:
        yield "CIDEr of that model during training", f"{log[0]['validation']['CIDEr']:.1f}"
    for epoch in epochs:
        if [epoch["stage"], epoch["epoch"]] == best_at:
            yield "best epoch", f"stage {epoch['stage']} epoch {epoch['epoch']}"
            if has_cider:
                yield "its CIDEr during training", f"{epoch['validation']['CIDEr']:.1f}"
