"""The report as a table for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from captioner.terminal import in_a_line
from captioner_training.losses.cider import MIN_IMAGES
from captioner_training.report.numbers import (
    SCORES,
    Part,
    has_cider,
    main_scores,
    missing_parts,
    part_of,
)
from captioner_training.report.side_by_side import letters, models_of, side_by_side

Report = Mapping[str, Any]

_COLUMNS = 80
_NAMES = 15  # columns for the names of measures
_CELL = 26  # columns of a score and its interval
_MODELS, _MODEL = 3, 21  # models side by side, and the columns of one


def draw_table(report: Report) -> str:
    """Return the settings, the scores and one line for each other measure.

    Args:
        report: what `captioner evaluate --json` prints.
    """
    head = "\n".join(_line(*line) for line in _head(report))
    end = "In brackets: 95 % intervals over images. All numbers: --json, --report DIR."
    if report.get("comparisons"):
        differences = "\n".join(_line(*line) for line in _differences(report))
        failed = "\n".join(_line(*line) for model in models_of(report) for line in _failed(model))
        return "\n\n".join(filter(None, [head, *_side_by_side(report), differences, failed, end]))
    rest = "\n".join(_line(*line) for line in (*_measures(report), *_failed(report)))
    return "\n\n".join(filter(None, [head, "\n".join(_scores(report)), rest, end]))


def _failed(report: Report) -> Iterator[tuple[str, str]]:
    for name, reason in missing_parts(report):
        yield name, f"failed: {reason}"


def _line(name: str, text: str) -> str:
    """Format a line; text that is too long continues below."""
    return textwrap.fill(
        in_a_line(text),
        _COLUMNS,
        initial_indent=name.ljust(_NAMES),
        subsequent_indent=" " * _NAMES,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _head(report: Report) -> Iterator[tuple[str, str]]:
    split, checkpoint = report["split"], report.get("checkpoint")
    name = f"{split['name']} of " if "name" in split else ""
    size = f"{split['images']:,} images, {split['references']:,} reference captions"
    yield "split", f"{name}{report['data']}: {size}"
    if report.get("comparisons"):
        models = models_of(report)
        for letter, model in zip(letters(len(models)), models, strict=True):
            yield letter, _how(model)
    elif checkpoint:
        yield "checkpoint", _how(report)
    else:
        part = f", only {report['scored']:,} of the images: not a score of the split"
        yield "captions", f"{report['predictions']}{part * (report['scored'] < split['images'])}"
    if part_of(report, "pycocoevalcap") is not None:
        yield "scorer", "pycocoevalcap, on COCO's tokens (PTB)"
    else:
        yield "scorer", "on Treebank tokens; published scores use COCO's (--official)"
    frequencies = report["document_frequencies"]
    if frequencies["hash"] != split["hash"]:
        yield "", f"CIDEr with the document frequencies of {frequencies['images']:,} images"


def _how(report: Report) -> str:
    """Return the name of a checkpoint and how it captioned, or of a file of captions."""
    if not (checkpoint := report.get("checkpoint")):
        return str(report["predictions"])
    style = f", style {report['style']}" if "style" in report else ""
    order = ", consensus" if report.get("consensus") else ""
    return (
        f"{checkpoint['name']}, version {checkpoint['version']}, "
        f"beam size {report['beam_size']}{order}{style}, {report['dtype']}"
    )


def _side_by_side(report: Report) -> Iterator[str]:
    """Yield tables, each with as many models as fit on the terminal."""
    rows, names = [*side_by_side(report)], letters(len(models_of(report)))
    for first in range(0, len(names), _MODELS):
        shown = slice(first, first + _MODELS)
        lines = [("", [f"{name:>6}" for name in names[shown]])]
        lines += [(name, [_aligned(cell) for cell in cells[shown]]) for name, cells in rows]
        yield "\n".join(
            (name.ljust(_NAMES + 1) + "".join(cell.ljust(_MODEL) for cell in cells)).rstrip()
            for name, cells in lines
        )


def _differences(report: Report) -> Iterator[tuple[str, str]]:
    for letter, values in zip("BCDEFGHIJKLMNOPQRSTUVWXYZ", report["comparisons"], strict=False):
        part = Part(values)
        for at, name in enumerate(("CIDEr", "ROUGE-L")):
            sign = "+" * (part[name] > 0)
            yield "" if at else f"A minus {letter}", f"{name} {sign}{part.text(name)}"


def _scores(report: Report) -> Iterator[str]:
    model, people = main_scores(report)
    if model is None:
        return
    columns = {"model": model} | ({} if people is None else {"people": people})
    yield (" " * _NAMES + "".join(f"{head:>6}".ljust(_CELL) for head in columns)).rstrip()
    for name in filter(model.__contains__, SCORES):
        cells = "".join(_cell(part, name).ljust(_CELL) for part in columns.values())
        yield (name.ljust(_NAMES) + cells).rstrip()
    if not has_cider(report):
        yield _line("CIDEr", f"     –  needs {MIN_IMAGES} images or more")


def _cell(part: Part, name: str) -> str:
    return _aligned(part.text(name))


def _aligned(text: str) -> str:
    value, _, interval = text.partition(" ")
    return f"{value:>6}  {interval}"


def _measures(report: Report) -> Iterator[tuple[str, str]]:
    if (part := part_of(report, "captions")) is not None:
        words, novel = part.values["words"], part.values.get("novel")
        new = "" if novel is None else f", {novel:.1f} % new"
        length = f"{words['mean']:.1f} words, {words['shortest']} to {words['longest']}"
        yield "captions", f"{length}; {part['distinct']:.1f} % distinct{new}"
    if (part := part_of(report, "captions", "hallucination")) is not None and "CHAIR_i" in part:
        yield "CHAIR-i", f"{part.text('CHAIR_i')} % of the named objects are absent"
    if (part := part_of(report, "calibration")) is not None:
        yield "calibration", f"error {part.text('error')} points"
        yield "cross-entropy", f"{part.text('cross_entropy', 3)} nats per token"
    for key, name in (("person_boxes", "people"), ("object_boxes", "other objects")):
        if (part := part_of(report, key)) is not None:
            uniform = part.text("uniform", 2).partition(" ")[0]
            yield "attention", f"{part.text('attention', 2)} on {name}, if uniform {uniform}"
    if (part := part_of(report, "deletion", "content")) is not None:
        yield "deletion", f"effect {part.text('effect', 3)} nats for content words"
    for kind in ("words", "captions", "objects"):
        if (part := part_of(report, "trust", kind)) is not None:
            yield (
                "trust",
                f"{kind}: AUROC {part.text('auroc', 3)}, error {part.text('error')} points",
            )
    if (part := part_of(report, "familiarity")) is not None:
        yield "familiarity", f"AUROC {part.text('auroc', 3)} against other pictures"
