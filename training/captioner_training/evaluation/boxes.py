"""Boxes of objects, in COCO's instances format, placed on the grid that a model attends over.

    {"images": [{"id": 7, "width": 640, "height": 480}, ...],
     "annotations": [{"image_id": 7, "category_id": 1, "bbox": [x, y, width, height]}, ...],
     "categories": [{"id": 1, "name": "person"}, ...]}

`bbox` is in pixels of the photo as it is seen, x to the right and y down from the top left corner.
Categories may be left out: then every box is a person's.
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

__all__ = ["BoxedObject", "Boxes", "box_coverage", "check_boxes", "read_boxes"]


class BoxedObject(NamedTuple):
    """An object of a photo.

    box: in fractions of the square that the grid covers; what the model does not see of the photo
    lies outside 0 to 1.
    """

    category: str
    box: Box


Boxes = Mapping[int | str, Sequence[BoxedObject]]
"""Of images, by their ids."""


def read_boxes(path: Path, transform: Transform) -> dict[int | str, list[BoxedObject]]:
    """Read the boxes of each image, by its id, in the order of the file.

    Raises DataError: the file cannot be read, or is not in COCO's instances format.
    """
    content = read_json(path, name=str(path))
    lists = content if isinstance(content, dict) else {}
    if lacks := [one for one in ("images", "annotations") if not isinstance(lists.get(one), list)]:
        lacks_lists = " and no list ".join(lacks)
        raise DataError(f"{path} is not in COCO's instances format: it has no list {lacks_lists}")
    found: dict[int | str, list[BoxedObject]] = defaultdict(list)
    try:
        names = {item["id"]: str(item["name"]) for item in content.get("categories", [])}
        sizes = {item["id"]: (item["width"], item["height"]) for item in content["images"]}
        for item in content["annotations"]:
            width, height = sizes[item["image_id"]]
            left, top, across, down = item["bbox"]
            if not (across >= 0 and down >= 0):  # NaN is refused too
                raise ValueError(f"a bbox of the size {across} x {down}")
            box = Box(left / width, top / height, (left + across) / width, (top + down) / height)
            placed = _on_square(box, transform.box(width, height))
            category = names.get(item.get("category_id"), "")
            found[item["image_id"]].append(BoxedObject(category, placed))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise DataError(
            f"{path} is not in COCO's instances format: an entry lacks {error}, or has a value of "
            "another kind; each annotation needs image_id and bbox [x, y, width, height], each "
            "image id, width and height"
        ) from error
    return found


def check_boxes(
    path: Path, transform: Transform, *, ids: Collection[int | str]
) -> dict[int | str, list[BoxedObject]]:
    """Read boxes as read_boxes does, and refuse a file that has none for any of these images.

    Raises DataError: it has none, or cannot be read.
    """
    found = read_boxes(path, transform)
    if not found.keys() & set(ids):
        raise DataError(
            f"{path} has boxes for {len(found):,} images, but for none of this split: image_id "
            "must be the id of the image in the data set"
        )
    return found


def _on_square(box: Box, seen: Box) -> Box:
    """Turn fractions of the photo into fractions of the part of it that the encoder sees."""
    width, height = seen.right - seen.left, seen.bottom - seen.top
    return Box(
        (box.left - seen.left) / width,
        (box.top - seen.top) / height,
        (box.right - seen.left) / width,
        (box.bottom - seen.top) / height,
    )


def box_coverage(boxes: Sequence[Box], *, rows: int, columns: int) -> Tensor:
    """Measure how much of each cell of a grid lies inside the union of the boxes.

    By coordinate compression: the lines of the grid and the edges of the boxes cut the square into
    rectangles, each of them wholly inside or outside every box, and wholly in one cell. Of a box,
    what lies outside 0 to 1 is cut off.

    Returns (rows, columns), float64, in [0, 1].
    """
    # In units of cells, where the lines of the grid are whole numbers and hence exact.
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
    # The clamp is for strips without width at the far edge, whose centre is the edge itself.
    row_of, column_of = y.long().clamp(max=rows - 1), x.long().clamp(max=columns - 1)
    by_row = areas.new_zeros(rows, len(x)).index_add_(0, row_of, areas)
    cells = areas.new_zeros(rows, columns).index_add_(1, column_of, by_row)
    return cells.clamp_(max=1)  # the parts of a whole cell sum to 1 up to rounding
