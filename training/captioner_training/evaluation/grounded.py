"""Grounding over a split: whether words for objects look at the boxes of these objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from captioner.errors import DataError
from captioner.vision.transform import Box
from captioner_training.evaluation.bootstrap import estimate, mean_table, told
from captioner_training.evaluation.boxes import BoxedObject, Boxes
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.categories import mentions
from captioner_training.evaluation.grounding import (
    center_weighted_attention,
    mass_in_boxes,
    points_at,
    uniform_attention,
)

__all__ = ["category_grounding", "object_grounding", "person_grounding"]


def person_grounding(captioned: Sequence[Captioned], boxes: Boxes) -> dict[str, object]:
    """Measure how much attention words for people leave inside the boxes of people.

    Args:
        captioned: a captioned split.
        boxes: of its images, by id; those of category `person`, or without one.

    Returns:
        Means over all words for people in images with boxes: the share of attention inside the
        boxes (`attention`), what uniform and centre-weighted attention would leave there, and how
        often the most attended cell lies in a box (`pointing`), beside a cell by chance and the
        middle one; with `intervals` over images.

    Raises:
        DataError: no caption speaks of people where there are boxes, or the model does not attend.

    """
    found = category_grounding(captioned, boxes, "person")
    if found is None:
        raise DataError("there are no boxes for images whose captions mention people")
    return found


def object_grounding(captioned: Sequence[Captioned], boxes: Boxes) -> dict[str, object]:
    """Measure the same for words that name any category but people, at the name's last word.

    Returns:
        As person_grounding, for all of them together; and `categories`, each by itself.

    Raises:
        DataError: no caption names a category where it has boxes, or the model does not attend.

    """
    names = {one.category for each in boxes.values() for one in each} - {"", "person"}
    together = category_grounding(captioned, boxes, *names)
    if together is None:
        raise DataError("there are no boxes for images whose captions name their categories")
    each = {name: category_grounding(captioned, boxes, name) for name in sorted(names)}
    return {**together, "categories": {name: one for name, one in each.items() if one is not None}}


def category_grounding(
    captioned: Sequence[Captioned], boxes: Boxes, *categories: str
) -> dict[str, object] | None:
    """Measure words for these categories; None where no caption names one that has boxes.

    Raises:
        DataError: the model does not attend.

    """
    sums: dict[str, list[float]] = defaultdict(list)
    for one in captioned:
        for name, value in _looks(one, boxes.get(one.image.id, ()), categories).items():
            sums[name].append(value)
    counts = sums.pop("words", [])
    if not sum(counts):
        return None
    tables = {name: mean_table(values, counts) for name, values in sums.items()}
    return {"words": sum(counts), **told(estimate(tables))}


def _looks(
    one: Captioned, objects: Sequence[BoxedObject], categories: Sequence[str]
) -> dict[str, float]:
    """Sum over the words of one image what their attention leaves in the boxes they name."""
    if one.attention is None:
        raise DataError("the model captions without attention: there is nothing to compare")
    size = one.attention.shape[1], one.attention.shape[2]
    uniform, centre = uniform_attention(*size), center_weighted_attention(*size)
    sums: dict[str, float] = dict.fromkeys(
        ("words", "attention", "uniform", "center_weighted", "pointing", "pointing_uniform",
         "pointing_center"), 0.0
    )  # fmt: skip
    for said in mentions(one.words):
        boxes = [thing.box for thing in objects if (thing.category or "person") == said.category]
        if said.category not in categories or not boxes:
            continue
        attention = one.attention[said.end - 1]
        sums["words"] += 1
        sums["attention"] += mass_in_boxes(attention, boxes)
        sums["uniform"] += mass_in_boxes(uniform, boxes)
        sums["center_weighted"] += mass_in_boxes(centre, boxes)
        sums["pointing"] += points_at(attention, boxes)
        # Uniform attention points anywhere: by chance as often as cells have their centre inside.
        sums["pointing_uniform"] += _centres_inside(boxes, *size)
        sums["pointing_center"] += points_at(centre, boxes)
    return sums


def _centres_inside(boxes: Sequence[Box], rows: int, columns: int) -> float:
    cells = torch.eye(rows * columns).reshape(-1, rows, columns)
    return sum(points_at(cell, boxes) for cell in cells) / len(cells)
