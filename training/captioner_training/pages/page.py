"""A report in its folder; its page needs nothing beside it: no file, no network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from captioner.files import replace_file
from captioner.vocabulary import Tokenizer, has_no_spaces, tokenize
from captioner_training.evaluation.image_row import ImageRow, best_and_worst
from captioner_training.evaluation.plain import as_json
from captioner_training.pages.figures import (
    SCORES,
    Part,
    main_scores,
    part_of,
    problem_of,
    told_value,
)
from captioner_training.pages.gallery import Gallery, Looks
from captioner_training.pages.markdown import write_markdown
from captioner_training.pages.plots import coverage_plot, dots_plot, histogram, reliability_plot
from captioner_training.pages.text import in_a_line
from captioner_training.pages.title import made_how, notes, title

__all__ = ["draw_page", "write_report"]

Report = Mapping[str, Any]

_SHOWN = 8  # best, and as many worst
_LOOKED = 3  # photos with the attention of their words
_KINDS = {
    "content": "words for things, gate open",
    "content_shut_gate": "words for things, gate shut",
    "function": "function words",
}
_LOOKS = {
    "attention": "attention in the boxes",
    "uniform": "… if it were uniform",
    "center_weighted": "… if it kept to the middle",
    "pointing": "most attended cell in a box",
    "pointing_uniform": "… for a cell by chance",
    "pointing_center": "… for the middle cell",
}


def write_report(folder: Path, report: Report, rows: Sequence[ImageRow], gallery: Gallery) -> None:
    """Write the three files; the JSON has the images one by one, as `per_image`.

    Raises:
        OutputError: a file cannot be written.

    """
    whole = {**report, "per_image": [row.record() for row in rows]}
    texts = {
        "report.json": json.dumps(as_json(whole), indent=1) + "\n",
        "report.md": write_markdown(report, rows),
        "report.html": draw_page(report, rows, gallery),
    }
    for name, text in texts.items():
        with replace_file(folder / name) as file:
            file.write(text.encode(errors="backslashreplace"))  # a name need not be text


def draw_page(report: Report, rows: Sequence[ImageRow], gallery: Gallery) -> str:
    """Write the page.

    Args:
        report: what `captioner evaluate --json` prints.
        rows: the images.
        gallery: their photos.

    """
    # Names and captions are strangers': all that is no Markup is put in a line and escaped.
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            in_a_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    here = files("captioner_training.pages")
    template, style, script = (
        here.joinpath(name).read_text(encoding="utf-8")
        for name in ("report.html", "page.css", "page.js")
    )
    heading, lead = title(report)
    model, people = main_scores(report)
    best, worst = best_and_worst(rows, _SHOWN)
    kinds = ((name, part_of(report, "deletion", key)) for key, name in _KINDS.items())
    deletion = [(name, part) for name, part in kinds if part is not None]
    plots = {
        "scores": _scores(model, people),
        "lengths": _lengths([row.caption for row in rows]),
        "ciders": histogram(
            [row.cider for row in rows], title="CIDEr-D of the captions", name="CIDEr-D", bins=24
        ),
        "reliability": list(_reliability(report)),
        "coverage": coverage_plot((report.get("confidence") or {}).get("coverage", ())),
        "grounding": list(_grounding(report)),
        "deletion": _deletion(deletion),
    }
    return environment.from_string(template).render(
        SCORES=SCORES, best=best, deletion=deletion, facts=made_how(report), gallery=gallery,
        heading=heading, lead=lead, looks=_looks(rows, gallery), model=model, notes=notes(report),
        part=partial(part_of, report), people=people, plots=plots, rows=rows, script=script,
        style=style, told_value=told_value, worst=worst,
        problems=[(name, told) for name in report if (told := problem_of(report, name))],
    )  # fmt: skip


def _dot(kind: str, part: Part, name: str) -> tuple[str, float, float, float]:
    return (kind, part[name], *part.interval(name))


def _scores(model: Part | None, people: Part | None) -> str:
    both = [(kind, part) for kind, part in (("model", model), ("people", people)) if part]
    rows = [
        (name, [_dot(kind, part, name) for kind, part in both if name in part])
        for name in SCORES
        if model is not None and name in model
    ]
    most = max((high for _, dots in rows for *_, high in dots), default=0.0)
    return dots_plot(rows, title="Scores of the model and of people", most=most) if rows else ""


def _lengths(texts: Sequence[str]) -> str:
    tokenizer: Tokenizer = "characters" if has_no_spaces(texts) else "words"
    lengths = [len(tokenize(text, tokenizer)) for text in texts]
    return histogram(lengths, title="Lengths of the captions", name=tokenizer)


def _reliability(report: Report) -> Iterator[tuple[str, str, Part]]:
    for names, told in (
        (("calibration",), "the next word of a reference"),
        (("confidence", "words"), "words that the model said, found in a reference"),
        (("confidence", "captions"), "captions: the share of their words"),
    ):
        if (part := part_of(report, *names)) is not None:
            bins = part.values["bins"], part.values["bins_calibrated"]
            yield told, reliability_plot(*bins, title=f"Reliability: {told}"), part


def _grounding(report: Report) -> Iterator[tuple[str, str, Part]]:
    for key, name in (("person_boxes", "people"), ("object_boxes", "other objects")):
        if (part := part_of(report, key)) is not None:
            rows = [
                (told, [_dot("chance" if told[0] == "…" else "model", part, one)])
                for one, told in _LOOKS.items()
            ]
            yield name, dots_plot(rows, title=f"Attention of words for {name}", most=1.0), part


def _deletion(kinds: Sequence[tuple[str, Part]]) -> str:
    rows = [(name, [_dot("model", part, "effect")]) for name, part in kinds]
    ends = [end for _, part in kinds for end in part.interval("effect")]
    most, least = max(ends, default=0.0), min(ends, default=0.0)
    title = "Effect of deletion"
    return dots_plot(rows, title=title, most=max(most, 0.01), least=min(least, 0.0)) if rows else ""


def _looks(rows: Sequence[ImageRow], gallery: Gallery) -> list[tuple[ImageRow, str, Looks]]:
    """Find where the words of some captions looked: of the best, the middling and the worst."""
    order = sorted(range(len(rows)), key=lambda at: -rows[at].cider)
    last = len(order) - 1
    found = []
    for at in dict.fromkeys(order[last * part // (_LOOKED - 1)] for part in range(_LOOKED) if rows):
        looks, picture = gallery.looks(at), gallery.picture(at)
        if looks and picture is not None:
            found.append((rows[at], picture, looks))
    return found
