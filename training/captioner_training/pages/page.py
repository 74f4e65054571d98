"""The report as one page that needs nothing beside it: no file, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from captioner_training.evaluation.image_row import ImageRow
from captioner_training.pages.figures import problem_of
from captioner_training.pages.gallery import (
    Gallery,
    all_images,
    best_and_worst_photos,
    looked_at,
)
from captioner_training.pages.sections import attention, captions, cards, confidence, scores
from captioner_training.pages.text import in_html
from captioner_training.pages.title import made_how, notes, title

__all__ = ["draw_page"]


def draw_page(report: Mapping[str, Any], rows: Sequence[ImageRow], gallery: Gallery) -> str:
    """Write the page.

    Args:
        report: what `captioner evaluate --json` prints.
        rows: the images.
        gallery: their photos.

    """
    here = files("captioner_training.pages")
    style = here.joinpath("page.css").read_text(encoding="utf-8")
    script = here.joinpath("page.js").read_text(encoding="utf-8")
    heading, lead = title(report)
    said = "".join(f'<p class="note">{in_html(note)}</p>' for note in notes(report))
    failed = "".join(
        f'<p class="note">{in_html(name)} is missing: {in_html(problem)}</p>'
        for name in report
        if (problem := problem_of(report, name)) is not None
    )
    facts = "".join(
        f"<dt>{in_html(name)}</dt><dd>{in_html(value)}</dd>" for name, value in made_how(report)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{in_html(heading)}</title><style>{style}</style></head><body><main>"
        f'<h1>{in_html(heading)}</h1><p class="lead">{in_html(lead)}</p>{said}{failed}'
        f"{cards(report)}{scores(report)}{captions(report, rows)}{confidence(report)}"
        f"{attention(report)}{looked_at(rows, gallery)}{best_and_worst_photos(rows, gallery)}"
        f"{all_images(rows)}<footer><dl>{facts}</dl></footer></main>"
        f"<script>{script}</script></body></html>\n"
    )
