"""Boxes of objects, in COCO's instances format, placed on the grid that a model attends over.

    {"images": [{"id": 7, "width": 640, "height": 480}, ...],
     "annotations": [{"image_id": 7, "category_id": 1, "bbox": [x, y, width, height]}, ...],
     "categories": [{"id": 1, "name": "person"}, ...]}

`bbox` is in pixels of the photo as it is seen, x to the right and y down from the top left corner.
Categories may be left out: then every box is taken for a person's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from captioner.errors import DataError
from captioner.vision.transform import Box, Transform

__all__ = ["BoxedObject", "Boxes", "categories_there", "check_boxes", "read_boxes"]


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

    Raises:
        DataError: the file cannot be read, or is not in COCO's instances format.

    """
    content = _content(path)
    try:
        names = {item["id"]: str(item["name"]) for item in content.get("categories", [])}
        sizes = {item["id"]: (item["width"], item["height"]) for item in content["images"]}
        found: dict[int | str, list[BoxedObject]] = defaultdict(list)
        for item in content["annotations"]:
            width, height = sizes[item["image_id"]]
            left, top, across, down = item["bbox"]
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
    """Read boxes as read_boxes does, and refuse those that belong to none of these images.

    Raises:
        DataError: they do, or they cannot be read.

    """
    found = read_boxes(path, transform)
    if not found.keys() & set(ids):
        raise DataError(
            f"{path} has boxes for {len(found):,} images, but for none of this split: image_id "
            "must be the id of the image in the data set"
        )
    return found


def categories_there(boxes: Boxes | None, ids: Sequence[int | str]) -> list[set[str]] | None:
    """Say which categories of objects each of these images has; None where no boxes are known."""
    if boxes is None:
        return None
    return [{one.category or "person" for one in boxes.get(image, ())} for image in ids]


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    missing = [
        part
        for part in ("images", "annotations")
        if not isinstance(content, dict) or not isinstance(content.get(part), list)
    ]
    if missing:
        lists = " and no list ".join(missing)
        raise DataError(f"{path} is not in COCO's instances format: it has no list {lists}")
    found: dict[str, Any] = content
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
