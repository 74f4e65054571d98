from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from captioner_training.data.scenes import (
    COLORS,
    SHAPES,
    Scene,
    SceneObject,
    draw_scene,
    scene_seed,
    write_scenes,
)
from tests.conftest import read_tree

# What a person would call these names, written down apart from the module's own table.
NAMED = {
    "red": (215, 35, 40), "orange": (245, 130, 30), "yellow": (250, 225, 50),
    "green": (35, 150, 65), "blue": (35, 100, 220), "purple": (120, 45, 155),
    "white": (247, 247, 247), "black": (18, 18, 18),
}  # fmt: skip
RGB = tuple[int, int, int]


@pytest.fixture(scope="module")
def drawn() -> list[Scene]:
    return [draw_scene(seed) for seed in range(100)]


def center(item: SceneObject) -> tuple[float, float]:
    left, top, width, height = item.box
    return left + width / 2, top + height / 2


def pixel(image: Image.Image, x: float, y: float) -> RGB:
    value = image.getpixel((int(x), int(y)))
    assert isinstance(value, tuple)
    return (int(value[0]), int(value[1]), int(value[2]))


def parse(caption: str) -> tuple[list[str], str, list[str]]:
    """Return the words of the large object, the relation and the words of the small object."""
    first, second = caption.split(" a small ")
    article, size, color, shape, relation = first.split(maxsplit=4)
    assert (article, size) == ("a", "large")
    return [color, shape], relation, second.split()


def test_the_middle_of_each_box_has_the_colour_that_the_caption_says(drawn: list[Scene]) -> None:
    assert set(NAMED) == set(COLORS)
    for scene in drawn:
        for item in scene.objects:
            seen = pixel(scene.image, *center(item))
            nearest = min(NAMED, key=lambda name: math.dist(NAMED[name], seen))
            assert nearest == item.color, f"{scene.caption}: {seen}"


def test_the_relation_is_clearly_that_of_the_centres(drawn: list[Scene]) -> None:
    for scene in drawn:
        (x0, y0), (x1, y1) = map(center, scene.objects)
        horizontal, vertical = abs(x1 - x0), abs(y1 - y0)
        if horizontal > vertical:
            expected = "left of" if x0 < x1 else "right of"
        else:
            expected = "above" if y0 < y1 else "below"
        assert parse(scene.caption)[1] == expected
        assert max(horizontal, vertical) >= 2 * min(horizontal, vertical)


def test_boxes_enclose_exactly_the_pixels_drawn(drawn: list[Scene]) -> None:
    """Of an object's colour, and near its box, are the pixels of the box and no others."""
    for scene in drawn[:40]:
        for item in scene.objects:
            left, top, width, height = item.box
            first = np.maximum(0, np.array([left, top], int) - 3)  # less than half of a gap
            last = np.array([left + width, top + height], int) + 4
            near = np.asarray(scene.image, float)[first[1] : last[1], first[0] : last[0]]
            hits = np.linalg.norm(near - pixel(scene.image, *center(item)), axis=-1) < 12
            ys, xs = np.nonzero(hits)
            # The tips of stars and hearts are thinner than a pixel: they fade over up to two.
            for start, size, found in (left, width, xs + first[0]), (top, height, ys + first[1]):
                assert start - 0.5 <= found.min() <= start + 3
                assert start + size - 3 <= found.max() + 1 <= start + size + 0.5


def test_pycocotools_reads_what_the_scenes_say(tmp_path: Path) -> None:
    written = tmp_path / "new" / "folder"
    write_scenes(written, splits={"train": 12, "val": 5}, seed=1)
    write_scenes(tmp_path / "other", splits={"val": 5, "train": 12}, seed=1)
    assert read_tree(tmp_path / "other") == read_tree(written)
    with contextlib.redirect_stdout(io.StringIO()):
        captions = COCO(str(written / "captions_val.json"))
        boxes = COCO(str(written / "boxes_val.json"))
    assert len(captions.imgs) == len(boxes.imgs) == 5
    assert [category["name"] for category in boxes.cats.values()] == list(SHAPES)
    for index, key in enumerate(sorted(captions.imgs)):
        scene = draw_scene(scene_seed(seed=1, split="val", index=index))
        (annotation,) = captions.imgToAnns[key]
        assert annotation["caption"] == scene.caption
        shapes = boxes.imgToAnns[key]
        assert len(shapes) == 2
        for shape, item in zip(shapes, scene.objects, strict=True):
            assert boxes.cats[shape["category_id"]]["name"] == item.shape
            assert shape["bbox"] == pytest.approx(item.box, abs=0.01)
            assert shape["area"] == pytest.approx(item.box[2] * item.box[3], abs=0.01)
            assert shape["iscrowd"] == 0
    # COCOeval takes an annotation's id of 0 for no match.
    assert min(boxes.anns) == min(captions.anns) == 1
