"""Whether attention is where it should be: on the objects that the words name.

An attention map is a (rows, columns) tensor of weights over an image's grid. Maps need not sum to
exactly 1 (half precision, weights rounded in a record): each is divided by its own sum.
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

__all__ = [
    "category_grounding",
    "center_weighted_attention",
    "mass_in_boxes",
    "object_grounding",
    "person_grounding",
    "points_at",
    "uniform_attention",
    "word_distance",
]


def word_distance(attention: Tensor) -> float:
    """Measure how much the attention (words, rows, columns) moves in a caption: 0 (never) to 1.

    The mean, over every pair of words, of the total-variation distance between their maps: half
    the sum of absolute differences, which is the share of attention that would have to move. nan
    for fewer than two words: 0 would claim that the attention stood still.
    """
    if len(attention) < 2:
        return math.nan
    return min(torch.pdist(_normalized(attention).flatten(1), p=1).mean().item() / 2, 1.0)


def mass_in_boxes(attention: Tensor, boxes: Sequence[Box]) -> float:
    """Measure the share of the attention (rows, columns) that falls inside the boxes: 0 to 1.

    Exact: a cell's weight is spread evenly over the cell, a cell partly inside counts by its
    covered area, and where boxes overlap it counts once.
    """
    weights = _normalized(attention)
    rows, columns = weights.shape
    inside = weights * box_coverage(boxes, rows=rows, columns=columns).to(weights.device)
    return min(inside.sum().item(), 1.0)


def points_at(attention: Tensor, boxes: Sequence[Box]) -> bool:
    """Tell whether the centre of the cell with the most attention is in any box, edges included.

    The pointing game of Zhang et al. 2016, "Top-down Neural Attention by Excitation Backprop",
    without its tolerance of 15 pixels: a cell of the grid is wider than that already. Of equal
    cells the first in reading order counts, so for a uniform map the answer means nothing.
    """
    rows, columns = attention.shape
    row, column = divmod(int(_normalized(attention).argmax()), columns)
    x, y = (column + 0.5) / columns, (row + 0.5) / rows
    return any(box[0] <= x <= box[2] and box[1] <= y <= box[3] for box in boxes)


def uniform_attention(rows: int, columns: int) -> Tensor:
    """Make the map (rows, columns) of no place in particular; its mass in boxes is their area."""
    return torch.full((rows, columns), 1 / (rows * columns))


def center_weighted_attention(rows: int, columns: int, sigma: float = 0.25) -> Tensor:
    """Make a Gaussian at the centre, (rows, columns), summing to 1: a baseline that never looks.

    Photographers put people in the middle, so attention that has only learned "the middle" beats
    the uniform map already; attention that follows the picture has to beat this one.

    `sigma` is the spread along either axis, as a fraction of the grid's extent. 0.25 is measured:
    the standard deviation, in x and in y, of the area of the people in the 1,950 COCO training
    photos whose person boxes are at hand (its mean is at 0.50, 0.51). A narrower one is harder to
    beat: the mass in those boxes is 0.29 for the uniform map, 0.38 for sigma 0.25 and 0.49 for
    sigma 0.1. Compare with one about as narrow as the attention that is judged.
    """

    def bell(cells: int) -> Tensor:
        offset = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells - 0.5
        # Softmax divides by the sum, and does not become 0/0 when sigma is tiny.
        return (-0.5 * (offset / sigma) ** 2).softmax(dim=0)

    return torch.outer(bell(rows), bell(columns)).to(torch.get_default_dtype())


def _normalized(attention: Tensor) -> Tensor:
    """Return the maps (..., rows, columns) in float64, each summing to 1."""
    weights = attention.detach().double()
    return weights / weights.sum(dim=(-2, -1), keepdim=True)


def person_grounding(captioned: Sequence[Captioned], boxes: Boxes) -> dict[str, object]:
    """Measure how much attention words for people leave inside the boxes of people.

    Args:
        captioned: a captioned split.
        boxes: of its images; those of category `person`, or without one.

    Returns:
        Means over all words for people in images with boxes: the share of attention inside the
        boxes (`attention`), what uniform and centre-weighted attention would leave there, and how
        often the most attended cell lies in a box (`pointing`), beside a cell by chance and the
        middle one; with `intervals` over images.

    Raises DataError: no caption speaks of people where there are boxes, or the model does not
    attend.
    """
    found = category_grounding(captioned, boxes, "person")
    if found is None:
        raise DataError("there are no boxes for images whose captions mention people")
    return found


def object_grounding(captioned: Sequence[Captioned], boxes: Boxes) -> dict[str, object]:
    """Measure the same for words that name any category but people, at the name's last word.

    Raises DataError: no caption names a category where it has boxes, or the model does not attend.
    """
    names = {one.category for each in boxes.values() for one in each} - {"", "person"}
    together = category_grounding(captioned, boxes, *names)
    if together is None:
        raise DataError("there are no boxes for images whose captions name their categories")
    return together


def category_grounding(
    captioned: Sequence[Captioned], boxes: Boxes, *categories: str
) -> dict[str, object] | None:
    """Measure words for these categories; None where no caption names one that has boxes.

    Raises DataError: the model does not attend.
    """
    sums: dict[str, list[float]] = defaultdict(list)
    for one in captioned:
        for name, value in _in_boxes(one, boxes.get(one.image.id, ()), categories).items():
            sums[name].append(value)
    counts = sums.pop("words", [])
    if not sum(counts):
        return None
    tables = {name: mean_table(values, counts) for name, values in sums.items()}
    return {"words": sum(counts), **summary(tables)}


def _in_boxes(
    one: Captioned, objects: Sequence[BoxedObject], categories: Sequence[str]
) -> dict[str, float]:
    """Sum over the words of one image what their attention leaves in the boxes they name."""
    if one.attention is None:
        raise DataError("the model captions without attention: there is nothing to compare")
    rows, columns = one.attention.shape[1:]
    uniform, centre = uniform_attention(rows, columns), center_weighted_attention(rows, columns)
    cells = torch.eye(rows * columns).reshape(-1, rows, columns)
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
        sums["pointing_uniform"] += sum(points_at(cell, boxes) for cell in cells) / len(cells)
        sums["pointing_center"] += points_at(centre, boxes)
    return sums
