"""Read boxes of objects in COCO's instances format and place them on a model's grid.

    {"images": [{"id": 7, "width": 640, "height": 480}, ...],
     "annotations": [{"image_id": 7, "category_id": 1, "bbox": [x, y, width, height]}, ...],
     "categories": [{"id": 1, "name": "person"}, ...]}

`bbox` is in pixels of the upright photo; x and y start at its top left corner. Without categories
every box is a person's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from captioner.errors import DataError
from captioner.tables import read_json
from captioner.vision.transform import Box, Transform


class BoxedObject(NamedTuple):
    """An object of a photo.

    box: in fractions of the area that the grid covers; parts of the photo outside that area have
    coordinates below 0 or above 1.
    """

    category: str
    box: Box


Boxes = Mapping[int | str, Sequence[BoxedObject]]
"""The objects of images, by image id."""


def read_boxes(path: Path, transform: Transform) -> dict[int | str, list[BoxedObject]]:
    """Read the boxes of each image, in the order of the file.

    Args:
        path: a file in COCO's instances format.
        transform: the model's transform, which decides which area of a photo the grid covers.

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
            category = names.get(item.get("category_id"), "")
            boxes[item["image_id"]].append(BoxedObject(category, placed))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise DataError(
            f"{path} is not in COCO's instances format: missing or invalid value ({error}); each "
            "annotation needs image_id and bbox [x, y, width, height], each image id, width and "
            "height"
        ) from error
    return boxes


def check_boxes(
    path: Path, transform: Transform, *, ids: Collection[int | str]
) -> dict[int | str, list[BoxedObject]]:
    """Read boxes and check that some of them belong to images of a split.

    Raises DataError: no box belongs to an image of the split, or the file cannot be read.
    """
    boxes = read_boxes(path, transform)
    if not boxes.keys() & set(ids):
        raise DataError(
            f"{path} has boxes for {len(boxes):,} images, but for none of this split; image_id "
            "must be the id of the image in the data set"
        )
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
    """Return the share of each grid cell that lies inside the union of the boxes.

    Uses coordinate compression: the lines of the grid and the edges of the boxes cut the square
    into rectangles. Each rectangle lies in one cell, and either inside or outside of each box.
    Boxes are clipped to 0 to 1.

    Returns (rows, columns), float64, in [0, 1].
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
