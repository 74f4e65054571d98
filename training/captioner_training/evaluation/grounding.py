"""Measure whether the attention of words lies on the objects that they name.

An attention map is a (rows, columns) tensor of weights over an image's grid. Every map is divided
by its sum, because half precision and rounded records do not sum to exactly 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from captioner.errors import DataError
from captioner.vision.transform import Box
from captioner_training.data.captioned import Captioned
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.boxes import BoxedObject, Boxes, box_coverage
from captioner_training.evaluation.hallucination import mentions


def word_distance(attention: Tensor) -> float:
    """Return how much the attention (words, rows, columns) moves in a caption, 0 to 1.

    This is the mean total-variation distance between the maps of two words, over all pairs. It is
    NaN for fewer than two words.
    """
    if len(attention) < 2:
        return math.nan
    return min(torch.pdist(_normalized(attention).flatten(1), p=1).mean().item() / 2, 1.0)


def mass_in_boxes(attention: Tensor, boxes: Sequence[Box]) -> float:
    """Return the share of the attention (rows, columns) inside the union of the boxes, 0 to 1.

    The weight of a cell is spread evenly over its area.
    """
    weights = _normalized(attention)
    rows, columns = weights.shape
    inside = weights * box_coverage(boxes, rows=rows, columns=columns).to(weights.device)
    return min(inside.sum().item(), 1.0)


def points_at(attention: Tensor, boxes: Sequence[Box]) -> bool:
    """Whether the centre of the cell with the most attention lies in a box, edges included.

    This is the pointing game of Zhang et al. 2016, "Top-down Neural Attention by Excitation
    Backprop", without its tolerance of 15 pixels, which is less than a cell. If several cells have
    the most attention, the first one is used.
    """
    rows, columns = attention.shape
    row, column = divmod(int(_normalized(attention).argmax()), columns)
    x, y = (column + 0.5) / columns, (row + 0.5) / rows
    return any(box[0] <= x <= box[2] and box[1] <= y <= box[3] for box in boxes)


def uniform_attention(rows: int, columns: int) -> Tensor:
    """Return the uniform map (rows, columns). Its mass in boxes is their area."""
    return torch.full((rows, columns), 1 / (rows * columns))


def center_weighted_attention(rows: int, columns: int, sigma: float = 0.25) -> Tensor:
    """Return a Gaussian (rows, columns) at the centre of the grid, summing to 1.

    A baseline that ignores the photo: people are often in the middle, so it beats the uniform map.

    Args:
        rows: number of rows of the grid.
        columns: number of columns of the grid.
        sigma: standard deviation on both axes, as a fraction of the grid. The default fits people
            in COCO photos.
    """

    def bell(cells: int) -> Tensor:
        offset = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells - 0.5
        # Softmax normalises without 0/0 for a tiny sigma.
        return (-0.5 * (offset / sigma) ** 2).softmax(dim=0)

    return torch.outer(bell(rows), bell(columns)).to(torch.get_default_dtype())


def _normalized(attention: Tensor) -> Tensor:
    """Return the maps (..., rows, columns) in float64, each summing to 1."""
    weights = attention.detach().double()
    return weights / weights.sum(dim=(-2, -1), keepdim=True)


def person_grounding(captioned: Sequence[Captioned], boxes: Boxes) -> dict[str, object]:
    """Measure how much attention of words for people lies inside the boxes of people.

    Args:
        captioned: a captioned split.
        boxes: the boxes of its images. Only boxes of category `person` or without one are used.

    Returns:
        Means over all words for people in images with boxes of people:
        `attention`: the share of attention inside the boxes.
        `uniform`, `center_weighted`: the same share for the two baselines.
        `pointing`: the share of words whose most attended cell lies in a box.
        `pointing_uniform`, `pointing_center`: the same share for a random and for the middle cell.
        `intervals`: the 95 % intervals of these means over images.
        `words`: the number of words.

    Raises DataError: no caption mentions people in an image with boxes, or the model has no
    attention.
    """
    measured = category_grounding(captioned, boxes, "person")
    if measured is None:
        raise DataError("no caption mentions people in an image that has boxes of people")
    return measured


def object_grounding(captioned: Sequence[Captioned], boxes: Boxes) -> dict[str, object]:
    """Measure as person_grounding does, for all other categories and at the last word of a name.

    Raises DataError: no caption names a category that has boxes, or the model has no attention.
    """
    names = {boxed.category for objects in boxes.values() for boxed in objects} - {"", "person"}
    measured = category_grounding(captioned, boxes, *names)
    if measured is None:
        raise DataError("no caption names an object that has a box in its image")
    return measured


def category_grounding(
    captioned: Sequence[Captioned], boxes: Boxes, *categories: str
) -> dict[str, object] | None:
    """Measure as person_grounding does, for the given categories.

    Returns None if no caption names one of them in an image that has boxes of it.

    Raises DataError: the model has no attention.
    """
    sums: dict[str, list[float]] = defaultdict(list)
    for caption in captioned:
        objects = boxes.get(caption.image.id, ())
        for name, value in _in_boxes(caption, objects, categories).items():
            sums[name].append(value)
    counts = sums.pop("words", [])
    if not sum(counts):
        return None
    tables = {name: mean_table(values, counts) for name, values in sums.items()}
    return {"words": sum(counts), **summary(tables)}


def _in_boxes(
    caption: Captioned, objects: Sequence[BoxedObject], categories: Sequence[str]
) -> dict[str, float]:
    """Return the sums of all measures over the words of a caption."""
    if caption.attention is None:
        raise DataError("--boxes needs a model with attention")
    rows, columns = caption.attention.shape[1:]
    uniform, centre = uniform_attention(rows, columns), center_weighted_attention(rows, columns)
    cells = torch.eye(rows * columns).reshape(-1, rows, columns)
    sums: dict[str, float] = dict.fromkeys(
        ("words", "attention", "uniform", "center_weighted", "pointing", "pointing_uniform",
         "pointing_center"), 0.0
    )  # fmt: skip
    for mention in mentions(caption.words):
        name = mention.category
        boxes = [boxed.box for boxed in objects if (boxed.category or "person") == name]
        if name not in categories or not boxes:
            continue
        attention = caption.attention[mention.end - 1]
        sums["words"] += 1
        sums["attention"] += mass_in_boxes(attention, boxes)
        sums["uniform"] += mass_in_boxes(uniform, boxes)
        sums["center_weighted"] += mass_in_boxes(centre, boxes)
        sums["pointing"] += points_at(attention, boxes)
        sums["pointing_uniform"] += sum(points_at(cell, boxes) for cell in cells) / len(cells)
        sums["pointing_center"] += points_at(centre, boxes)
    return sums
