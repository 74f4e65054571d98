"""The report of `captioner evaluate --report`: report.html and report.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from captioner.files import replace_file
from captioner_training.evaluation.report import ImageRow, as_json
from captioner_training.report.gallery import Gallery
from captioner_training.report.numbers import (
    SCORES,
    Part,
    circumstances,
    main_scores,
    missing_parts,
    number,
    part_of,
    title,
)
from captioner_training.report.plots import Plot, histogram, reliability_plot, review_plot
from captioner_training.report.side_by_side import letters, models_of, side_by_side
from captioner_training.report.template import render

Report = Mapping[str, Any]

_SHOWN = 12  # number of best, and of worst, captions: fills rows of two, three and four
_ACROSS = 4  # photos per row of a wide page
_EXAMPLES = 3  # captions with the attention of their words
_KINDS = {
    "content": "content words, gate open",
    "content_shut_gate": "content words, gate shut",
    "function": "function words",
}
_CARDS = ("CIDEr", "BLEU-4", "ROUGE-L", "METEOR")


def write_report(
    folder: Path, report: Report, rows: Sequence[ImageRow], galleries: Sequence[Gallery]
) -> None:
    """Write report.html and report.json, which has the images as `per_image`.

    Raises OutputError: a file cannot be written.
    """
    whole = {**report, "per_image": [row.record() for row in rows]}
    texts = {
        "report.json": json.dumps(as_json(whole), indent=1) + "\n",
        "report.html": draw_page(report, rows, galleries),
    }
    for name, text in texts.items():
        with replace_file(folder / name) as file:
            file.write(text.encode(errors="backslashreplace"))  # file names may not be UTF-8


def draw_page(report: Report, rows: Sequence[ImageRow], galleries: Sequence[Gallery]) -> str:
    """Return the HTML page.

    Args:
        report: what `captioner evaluate --json` prints.
        rows: one per image.
        galleries: the photos of the rows with the captions of this report, and one gallery for each
            report that it is compared with.
    """
    heading, lead = title(report)
    gallery, models = galleries[0], models_of(report)
    model, people = main_scores(report)
    order = sorted(range(len(rows)), key=lambda at: (rows[at].cider, rows[at].rouge_l))
    shown = min(_SHOWN, len(rows) // 2)
    shown -= shown % _ACROSS if shown > _ACROSS else 0
    failed = [f"{name} failed: {problem}" for name, problem in missing_parts(report)]
    kinds = ((name, part_of(report, "deletion", key)) for key, name in _KINDS.items())
    boxes = (("people", "person_boxes"), ("other objects", "object_boxes"))
    return render(
        "evaluation.html",
        SCORES=SCORES,
        best=order[::-1][:shown],
        cards=list(_cards(model, people)),
        comparisons=_comparisons(report, rows),
        deletion=[(name, part) for name, part in kinds if part is not None],
        examples=_examples(rows, galleries),
        facts=list(circumstances(report)),
        gallery=gallery,
        grounding=[(name, part) for name, key in boxes if (part := part_of(report, key))],
        heading=heading,
        lead=lead,
        letters=letters(len(models)),
        model=model,
        models=[_name(model) for model in models],
        notes=[report["comparable"], *report.get("problems", ()), *failed],
        number=number,
        part=partial(part_of, report),
        people=people,
        plots={
            "ciders": histogram(
                [row.cider for row in rows], title="CIDEr-D per caption", name="CIDEr-D", bins=24
            ),
            "review": review_plot((report.get("trust") or {}).get("review", ())),
        },
        reliability=list(_reliability(report)),
        rows=rows,
        side_by_side=list(side_by_side(report)) if len(models) > 1 else [],
        worst=order[:shown],
    )


def _cards(model: Part | None, people: Part | None) -> Iterator[tuple[str, str, str]]:
    for name in _CARDS if model is not None else ():
        if model is not None and name in model:
            low, high = model.interval(name)
            about = f"{low:.1f} to {high:.1f}"
            if people is not None and name in people:
                about += f"; people {number(people[name])}"
            yield number(model[name]), name, about


def _name(report: Report) -> str:
    checkpoint = report.get("checkpoint")
    if not checkpoint:
        return Path(str(report["predictions"])).name
    return f"{checkpoint['name']}, version {checkpoint['version']}"


def _comparisons(
    report: Report, rows: Sequence[ImageRow]
) -> list[tuple[Part, str, list[tuple[str, list[int]]]]]:
    """Return the score differences from each compared report.

    With each come the name of the compared model, and the photos whose CIDEr changed most.
    """
    parts = report.get("comparisons", ())
    return [
        (Part(part), _name(part["report"]), _changed(rows, at)) for at, part in enumerate(parts)
    ]


def _changed(rows: Sequence[ImageRow], other: int) -> list[tuple[str, list[int]]]:
    """Return the photos that improved most, and worsened most, from another report to this one."""
    change = {
        at: row.cider - row.others[other][1]
        for at, row in enumerate(rows)
        if row.caption != row.others[other][0]
    }
    order = sorted(change, key=change.__getitem__)
    ways = {
        "Most improved": [at for at in order[::-1][:_ACROSS] if change[at] > 0],
        "Most worsened": [at for at in order[:_ACROSS] if change[at] < 0],
    }
    return [(name, places) for name, places in ways.items() if places]


def _reliability(report: Report) -> Iterator[tuple[str, Plot, Part]]:
    for names, kind in (
        (("calibration",), "next word of a reference"),
        (("trust", "words"), "content words"),
        (("trust", "captions"), "captions (all content words right)"),
        (("trust", "objects"), "COCO objects"),
    ):
        if (part := part_of(report, *names)) is not None:
            plot = reliability_plot(part.values["bins"], title=f"Reliability: {kind}")
            yield kind, plot, part


def _examples(
    rows: Sequence[ImageRow], galleries: Sequence[Gallery]
) -> list[tuple[ImageRow, str, str, str, list[tuple[str, str]]]]:
    """Return the best, the median and the worst caption with the attention of their words.

    Each example has a row, the letter of the model or "", the caption, the photo, and words with
    their maps. It is followed by the examples of the other models for the same photo.
    """
    order = sorted(range(len(rows)), key=lambda at: -rows[at].cider)
    last, parts = len(order) - 1, range(_EXAMPLES) if rows else ()
    examples = []
    for at in dict.fromkeys(order[last * part // (_EXAMPLES - 1)] for part in parts):
        captions = [rows[at].caption, *(caption for caption, _ in rows[at].others)]
        names = letters(len(captions)) if len(captions) > 1 else [""]
        for name, caption, gallery in zip(names, captions, galleries, strict=True):
            maps, picture = gallery.maps(at), gallery.picture(at)
            if picture is not None and (maps or (name and gallery.captioned)):
                examples.append((rows[at], name, caption, picture, maps))
    return examples
