"""Measure whether the attention of words lies on the objects that they name.

Boxes are read in COCO's instances format and placed on the model's grid:

    {"images": [{"id": 7, "width": 640, "height": 480}, ...],
     "annotations": [{"image_id": 7, "category_id": 1, "bbox": [x, y, width, height]}, ...],
     "categories": [{"id": 1, "name": "person"}, ...]}

`bbox` is in pixels of the upright photo; x and y start at its top left corner. Without categories
every box is a person's. An attention map is a (rows, columns) tensor of weights over an image's
grid. Every map is divided by its sum, because half precision and rounded records do not sum to
exactly 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from captioner.errors import DataError
from captioner.photos.transform import Box, Transform
from captioner.shared.tables import read_json
from captioner_training.data.images import Captioned
from captioner_training.evaluation.bootstrap import mean_table, summary
from captioner_training.evaluation.words import PERSON, mentions


class BoxedObject(NamedTuple):
    """An object of a photo.

    box: in fractions of the area that the grid covers; parts of the photo outside that area have
    coordinates below 0 or above 1.
    """

    category: str
    box: Box


Boxes = Mapping[int | str, Sequence[BoxedObject]]
"""The objects of images, by image id."""

_GROUNDING = ("attention", "uniform", "center_weighted", "pointing")


def read_boxes(path: Path, transform: Transform) -> dict[int | str, list[BoxedObject]]:
    """Read the boxes of each image, in the order of the file.

    The model's transform decides which area of a photo the grid covers.

    Raises DataError: the file cannot be read, or is not in COCO's instances format.
    """
    content = read_json(path, name=str(path))
    lists = content if isinstance(content, dict) else {}
    missing = [key for key in ("images", "annotations") if not isinstance(lists.get(key), list)]
    if missing:
        names_of_lists = " and ".join(missing)
        raise DataError(f"{path} is not in COCO's instances format: no list {names_of_lists}")
    boxes: dict[int | str, list[BoxedObject]] = defaultdict(list)
    try:
        names = {item["id"]: str(item["name"]) for item in content.get("categories", [])}
        sizes = {item["id"]: (item["width"], item["height"]) for item in content["images"]}
        for item in content["annotations"]:
            width, height = sizes[item["image_id"]]
            left, top, across, down = item["bbox"]
            if not (across >= 0 and down >= 0):  # also refuses NaN
                raise ValueError(f"bbox has the size {across} x {down}")
            box = Box(left / width, top / height, (left + across) / width, (top + down) / height)
            placed = _on_grid(box, transform.box(width, height))
            category = names.get(item.get("category_id"), PERSON)
            boxes[item["image_id"]].append(BoxedObject(category, placed))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise DataError(
            f"{path} is not in COCO's instances format: missing or invalid value ({error}); each "
            "annotation needs image_id and bbox [x, y, width, height], each image id, width and "
            "height"
        ) from error
    return boxes


def _on_grid(box: Box, seen: Box) -> Box:
    """Convert fractions of the photo to fractions of the part that the encoder sees."""
    width, height = seen.right - seen.left, seen.bottom - seen.top
    return Box(
        (box.left - seen.left) / width,
        (box.top - seen.top) / height,
        (box.right - seen.left) / width,
        (box.bottom - seen.top) / height,
    )


def box_coverage(boxes: Sequence[Box], *, rows: int, columns: int) -> Tensor:
    """Return the share (rows, columns) of each grid cell inside the union of the boxes, float64.

    Uses coordinate compression: the lines of the grid and the edges of the boxes cut the square
    into rectangles. Each rectangle lies in one cell, and either inside or outside of each box.
    Boxes are clipped to 0 to 1.
    """
    # In units of cells the lines of the grid are integers, which are exact.
    scale = torch.tensor([columns, rows, columns, rows], dtype=torch.float64)
    edges = torch.tensor([tuple(box) for box in boxes], dtype=torch.float64).reshape(-1, 4)
    lefts, tops, rights, bottoms = (edges.clamp(0, 1) * scale).unbind(1)
    xs = torch.cat([torch.arange(columns + 1), lefts, rights]).sort().values
    ys = torch.cat([torch.arange(rows + 1), tops, bottoms]).sort().values
    x, y = (xs[1:] + xs[:-1]) / 2, (ys[1:] + ys[:-1]) / 2  # the rectangles' centres
    in_columns = (lefts[:, None] < x) & (x < rights[:, None])
    in_rows = (tops[:, None] < y) & (y < bottoms[:, None])
    covered = (in_rows[:, :, None] & in_columns[:, None, :]).any(dim=0)
    areas = torch.outer(ys.diff(), xs.diff()) * covered
    # Strips of zero width at the far edge have their centre on the edge; clamp keeps them inside.
    row_of, column_of = y.long().clamp(max=rows - 1), x.long().clamp(max=columns - 1)
    by_row = areas.new_zeros(rows, len(x)).index_add_(0, row_of, areas)
    cells = areas.new_zeros(rows, columns).index_add_(1, column_of, by_row)
    return cells.clamp_(max=1)  # rounding can make a sum exceed 1


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


def center_weighted_attention(rows: int, columns: int) -> Tensor:
    """Return a Gaussian (rows, columns) at the centre of the grid, summing to 1.

    A baseline that ignores the photo: people are often in the middle, so it beats the uniform map.
    The standard deviation is a quarter of the grid, which fits people in COCO photos.
    """

    def bell(cells: int) -> Tensor:
        offset = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells - 0.5
        return (-0.5 * (offset / 0.25) ** 2).softmax(dim=0)

    return torch.outer(bell(rows), bell(columns)).to(torch.get_default_dtype())


def _normalized(attention: Tensor) -> Tensor:
    """Return the maps (..., rows, columns) in float64, each summing to 1."""
    weights = attention.detach().double()
    return weights / weights.sum(dim=(-2, -1), keepdim=True)


def measure_grounding(
    captioned: Sequence[Captioned], boxes: Boxes, *, people: bool
) -> dict[str, object]:
    """Measure how much attention of words lies inside the boxes of the objects that they name.

    With `people`, words for people are measured; otherwise the names of all other categories, at
    their last word.

    Returns:
        Means over all words that name an object with boxes in their image:
        `attention`: the share of attention inside the boxes.
        `uniform`, `center_weighted`: the same share for two baselines.
        `pointing`: the share of words whose most attended cell lies in a box.
        `intervals`: the 95 % intervals of these means over images.
        `words`: the number of words.

    Raises DataError: no caption names such an object, or the model has no attention.
    """
    sums = np.zeros((len(captioned), 1 + len(_GROUNDING)))  # words, and measures of the words
    for row, caption in zip(sums, captioned, strict=True):
        if caption.attention is None:
            raise DataError("--boxes needs a model with attention")
        rows, columns = caption.attention.shape[1:]
        baselines = uniform_attention(rows, columns), center_weighted_attention(rows, columns)
        for mention in mentions(caption.words):
            name, objects = mention.category, boxes.get(caption.image.id, ())
            named = [boxed.box for boxed in objects if boxed.category == name]
            if named and (name == PERSON) == people:
                attention = caption.attention[mention.end - 1]
                shares = (mass_in_boxes(weights, named) for weights in (attention, *baselines))
                row += (1, *shares, points_at(attention, named))
    words, *values = sums.T
    if not words.any():
        kind = "people" if people else "an object"
        raise DataError(f"no caption names {kind} with boxes in its image")
    tables = {
        name: mean_table(value, words) for name, value in zip(_GROUNDING, values, strict=True)
    }
    return {"words": float(words.sum()), **summary(tables)}
