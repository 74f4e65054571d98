"""`captioner evaluate`: captions a split, or reads captions of it, and measures what is asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from captioner.predictor import Captioner
from captioner.terminal import printable
from captioner_training.evaluation.comparison import check_comparable, compare_reports
from captioner_training.evaluation.deletion import FUNCTION_WORDS
from captioner_training.evaluation.elsewhere import CaptionsElsewhere
from captioner_training.evaluation.image_row import ImageRow
from captioner_training.evaluation.inputs import Inputs, read_inputs
from captioner_training.evaluation.measures import Asked, CaptionedSplit
from captioner_training.evaluation.predictions import Predictions
from captioner_training.evaluation.report import describe_data, measure_parts, print_report
from captioner_training.pages.gallery import Gallery, photos_of
from captioner_training.pages.page import write_report
from captioner_training.pages.table import draw_table

__all__ = ["evaluate"]


def evaluate(arguments: argparse.Namespace, *, read: Sequence[Path | None]) -> int:
    """Caption or score the split, and print; 1 where one of the things asked for failed.

    Args:
        arguments: the options of `captioner evaluate`.
        read: the files among them that may not be overwritten, the data first.

    """
    inputs = read_inputs(arguments, read)
    if inputs.captioner is not None:
        return _evaluate(arguments, inputs, inputs.captioner)
    return _score(arguments, inputs, inputs.score or Predictions(captions=[]))


def _score(arguments: argparse.Namespace, inputs: Inputs, read: Predictions) -> int:
    """Score captions that were made elsewhere; no model is read."""
    there = CaptionsElsewhere(read, inputs.split, corpus=inputs.corpus)
    for problem in there.problems:
        print(f"captioner: {printable(problem)}", file=sys.stderr)
    report: dict[str, object] = {
        **describe_data(
            arguments.data or arguments.captions,
            inputs.split,
            name=arguments.split if arguments.data else None,
            corpus=inputs.corpus,
            scored=len(there.places),
        ),
        "scored": len(there.places),
        "predictions": str(arguments.score),
        "problems": there.problems,
    }
    parts = there.parts(official=arguments.official, training=inputs.training, boxes=inputs.boxes)
    gallery = photos_of([inputs.images[at] for at in there.places]) if inputs.images else Gallery()
    failed = _finish(arguments, report, parts, lambda: there.rows, gallery, inputs.other)
    return failed or int(len(there.places) < len(inputs.split))


def _evaluate(arguments: argparse.Namespace, inputs: Inputs, captioner: Captioner) -> int:
    """Caption the split; each thing asked for is done by itself, and costs itself if it fails."""
    data = arguments.data or arguments.captions
    name = arguments.split if arguments.data else None
    described = describe_data(data, inputs.split, name=name, corpus=inputs.corpus)
    if inputs.other is not None:  # captioning takes minutes
        check_comparable(described, inputs.other)
    asked = Asked(
        official=arguments.official,
        boxes=inputs.boxes,
        calibration=arguments.calibration,
        deletion=arguments.deletion,
        training=inputs.training,
        predictions=arguments.predictions,
        unlike=arguments.unlike,
    )
    captioned = CaptionedSplit(
        captioner,
        inputs.images,
        asked=asked,
        beam_size=arguments.beam_size,
        style=arguments.style,
        corpus=inputs.corpus,
    )
    report: dict[str, object] = {**described, **captioned.facts()}
    gallery = photos_of(
        inputs.images, captioned.captioned, framing=captioner.transform, leave_out=FUNCTION_WORDS
    )
    parts = captioned.parts()
    return _finish(arguments, report, parts, lambda: captioned.rows, gallery, inputs.other)


def _finish(
    arguments: argparse.Namespace,
    report: dict[str, object],
    parts: Mapping[str, Callable[[], object]],
    rows: Callable[[], list[ImageRow]],
    gallery: Gallery,
    other: Mapping[str, Any] | None,
) -> int:
    """Measure the parts, compare, write the report and print it; 1 where something failed."""
    asked = dict(parts)
    if other is not None:
        asked["comparison"] = lambda: compare_reports(report, rows(), other)
    failed = measure_parts(report, asked)
    print_report(report) if arguments.json else print(draw_table(report))
    if arguments.report is not None:
        write_report(arguments.report, report, rows(), gallery)
        print(f"captioner: the report is {arguments.report / 'report.html'}", file=sys.stderr)
    return failed
