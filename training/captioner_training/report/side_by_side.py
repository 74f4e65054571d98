"""Show the models of a comparison side by side, with every measure that one of them has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from captioner_training.report.numbers import SCORES, part_of

Report = Mapping[str, Any]

# Title, parts of the report (the first existing one is used), name of the number, digits.
_MEASURES = (
    ("CHAIR-i, %", ("captions.hallucination",), "CHAIR_i", 1),
    ("CHAIR-s, %", ("captions.hallucination",), "CHAIR_s", 1),
    ("on people", ("person_boxes",), "attention", 2),
    ("  if uniform", ("person_boxes",), "uniform", 2),
    ("on objects", ("object_boxes",), "attention", 2),
    ("  if uniform", ("object_boxes",), "uniform", 2),
    ("deletion, nats", ("deletion.all_content", "deletion.content"), "effect", 3),
    ("next token: ECE", ("calibration",), "error", 1),
    ("trust: AUROC", ("trust.words",), "auroc", 3),
    ("trust: ECE", ("trust.words",), "error", 1),
)


def models_of(report: Report) -> list[Report]:
    """Return the report, and the reports that it is compared with."""
    return [report, *(part["report"] for part in report.get("comparisons", ()))]


def letters(count: int) -> list[str]:
    """Name models: A, B and so on."""
    return [chr(ord("A") + at) for at in range(count)]


def side_by_side(report: Report) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each measure, and its value and interval (or a dash) for each model."""
    models = models_of(report)
    # The scores on COCO's tokens are shown only if all models have them.
    official = all(part_of(model, "pycocoevalcap") for model in models)
    scores = ("pycocoevalcap" if official else "nltk",)
    for name, paths, key, digits in (*((name, scores, name, 1) for name in SCORES), *_MEASURES):
        cells = []
        for model in models:
            parts = filter(None, (part_of(model, *path.split(".")) for path in paths))
            part = next(parts, None)
            cells.append("–" if part is None else part.text(key, digits))
        if any(cell != "–" for cell in cells):
            yield name, cells
