"""The report as Markdown, for a pull request or a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from captioner_training.evaluation.image_row import ImageRow, best_and_worst
from captioner_training.pages.figures import SCORES, part_of, problem_of, told_value
from captioner_training.pages.text import in_markdown
from captioner_training.pages.title import made_how, notes, title

__all__ = ["write_markdown"]

Report = Mapping[str, Any]

_SHOWN = 5  # best, and as many worst


def write_markdown(report: Report, rows: Sequence[ImageRow]) -> str:
    """Write the report; arguments as of draw_page."""
    heading, lead = title(report)
    parts = [f"# {in_markdown(heading)}", *map(in_markdown, (lead, *notes(report)))]
    for name in report:
        if (problem := problem_of(report, name)) is not None:
            parts.append(f"{name} is missing: {in_markdown(problem)}")
    parts += [
        "\n".join(lines) for lines in (list(_scores(report)), list(_numbers(report))) if lines
    ]
    best, worst = best_and_worst(rows, _SHOWN)
    for name, places in (("Best", best), ("Worst", worst)):
        parts.append(f"## {name}")
        parts.append("\n".join(_image(rows[at]) for at in places))
    facts = "\n".join(f"- {name}: {in_markdown(value)}" for name, value in made_how(report))
    return "\n\n".join([*parts, "## How it was made", facts]) + "\n"


def _scores(report: Report) -> Iterator[str]:
    columns = [
        (head, part)
        for head, names in (
            ("model", ("nltk",)),
            ("people", ("nltk", "human")),
            ("model, COCO's tokens", ("pycocoevalcap",)),
            ("people, COCO's tokens", ("pycocoevalcap", "human")),
        )
        if (part := part_of(report, *names)) is not None
    ]
    if not columns:
        return
    yield f"| | {' | '.join(head for head, _ in columns)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    for name in SCORES:
        if any(name in part for _, part in columns):
            yield f"| {name} | {' | '.join(part.told(name) for _, part in columns)} |"


def _numbers(report: Report) -> Iterator[str]:
    """List every other number by its name in report.json."""
    for key in ("captions", "calibration", "confidence", "familiarity", "person_boxes"):
        part = part_of(report, key)
        if part is not None:
            yield f"- {key}: {_told(part.values)}"
    for key in ("content", "content_shut_gate", "function"):
        part = part_of(report, "deletion", key)
        if part is not None:
            yield f"- deletion, {key}: {_told(part.values, digits=3)}"


_DIGITS = {"cross_entropy": 3}  # models differ by hundredths of a nat


def _told(values: Mapping[str, Any], *, digits: int = 2) -> str:
    found, usual = [], digits
    for name, value in values.items():
        digits = _DIGITS.get(name, usual)
        if isinstance(value, Mapping) and name != "intervals":
            found.append(f"{name} ({_told(value, digits=digits)})")
        elif isinstance(value, float) and name in (values.get("intervals") or {}):
            low, high = (told_value(end, digits) for end in values["intervals"][name])
            found.append(f"{name} {value:.{digits}f} [{low}, {high}]")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append(
                f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.{digits}f}"
            )
    return ", ".join(found)


def _image(row: ImageRow) -> str:
    name, caption, reference = map(in_markdown, (row.name, row.caption, row.references[0]))
    said = f"**{caption}**" if caption else "(without a word)"
    return f"- {name}, CIDEr-D {row.cider:.0f}: {said} — {reference}"
