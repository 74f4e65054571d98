"""Boxes on the grid, and attention in them; numbers are worked by hand in the comments."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from captioner import DataError
from captioner.photos.transform import Box, Transform, TransformConfig
from captioner_training.evaluation.captioning import scene_pointing
from captioner_training.evaluation.grounding import (
    box_coverage,
    center_weighted_attention,
    mass_in_boxes,
    measure_grounding,
    points_at,
    read_boxes,
    uniform_attention,
)
from captioner_training.evaluation.scores import model_facts
from tests.training.evaluation.test_trust import captioned

SQUASH = Transform(TransformConfig(mode="squash", size=64))
CROP = Transform(TransformConfig(mode="crop", size=64))


def one_hot(row: int, column: int, *, rows: int = 2, columns: int = 2) -> Tensor:
    attention = torch.zeros(rows, columns)
    attention[row, column] = 1
    return attention


def write(path: Path, boxes: list[tuple[str, list[float]]], *, width: int, height: int) -> Path:
    names = sorted({name for name, _ in boxes})
    content = {
        "images": [{"id": 7, "width": width, "height": height}],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names)],
        "annotations": [
            {"image_id": 7, "category_id": names.index(name), "bbox": box} for name, box in boxes
        ],
    }
    path.write_text(json.dumps(content))
    return path


def test_mass_of_uniform_attention_is_the_area_of_the_union() -> None:
    cases: list[tuple[list[Any], float]] = [
        ([], 0.0),
        # Half of the two left cells' width: 2 cells * 1/2 of 1/4 each.
        ([(0, 0, 0.25, 1)], 0.25),
        # Twice the same box counts once.
        ([(0, 0, 0.5, 0.5), (0, 0, 0.5, 0.5)], 0.25),
        # 0.6 x 0.6 twice, overlapping in 0.2 x 0.2: 0.36 + 0.36 - 0.04.
        ([(0, 0, 0.6, 0.6), (0.4, 0.4, 1, 1)], 0.68),
        # Beyond the image there is no attention.
        ([(-3, -3, 0.5, 5)], 0.5),
    ]
    for boxes, share in cases:
        assert mass_in_boxes(uniform_attention(2, 2), boxes) == pytest.approx(share, abs=1e-7)


def test_mass_weighs_each_cell_by_the_part_that_is_covered() -> None:
    attention = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    # x from 1/4 to 1, y from 1/2 to 3/4: of the lower cells, half of the left one's width and the
    # whole of the right one's, each at half its height: 0.3 * 1/2 * 1/2 + 0.4 * 1 * 1/2.
    assert mass_in_boxes(attention, [(0.25, 0.5, 1, 0.75)]) == pytest.approx(0.275)
    # One row, four columns, all attention in the last column: the right quarter, any height.
    last = one_hot(0, 3, rows=1, columns=4)
    assert mass_in_boxes(last, [(0.75, 0, 1, 1)]) == 1.0
    assert mass_in_boxes(last, [(0, 0.75, 1, 1)]) == pytest.approx(0.25)
    # Of a map whose sum is not 1, the share of what there is.
    half = torch.full((2, 2), 0.1, dtype=torch.float16)
    assert mass_in_boxes(half, [(0, 0, 0.5, 1)]) == pytest.approx(0.5)


def test_coverage_agrees_with_counting_fine_pixels() -> None:
    rng = random.Random(5)
    rows, columns, fine = 5, 7, 12
    for _ in range(20):
        boxes: list[Box] = []
        for _ in range(rng.randint(1, 6)):
            # Edges on the fine pixels' own lines, so that counting is exact.
            x = sorted(rng.sample(range(columns * fine + 1), 2))
            y = sorted(rng.sample(range(rows * fine + 1), 2))
            w, h = columns * fine, rows * fine
            boxes.append(Box(x[0] / w, y[0] / h, x[1] / w, y[1] / h))
        painted = torch.zeros(rows * fine, columns * fine)
        for left, top, right, bottom in boxes:
            ys = slice(round(top * rows * fine), round(bottom * rows * fine))
            painted[ys, round(left * columns * fine) : round(right * columns * fine)] = 1
        counted = painted.view(rows, fine, columns, fine).mean(dim=(1, 3)).double()
        found = box_coverage(boxes, rows=rows, columns=columns)
        torch.testing.assert_close(found, counted, atol=1e-6, rtol=0)
    near = math.nextafter(1.0, 0.0)  # an edge a hair from the border
    whole = box_coverage([Box(near, 0, 1, 1), Box(0, 0, near, near)], rows=3, columns=7)
    torch.testing.assert_close(whole, torch.ones(3, 7, dtype=torch.float64))


def test_pointing_looks_at_the_centre_of_the_highest_cell() -> None:
    attention = one_hot(0, 1, rows=2, columns=4)  # its centre is (3/8, 1/4)
    assert points_at(attention, [(0.375, 0.25, 1, 1)])  # on the corner
    assert points_at(attention, [(0.9, 0.9, 1, 1), (0, 0, 0.5, 0.5)])  # in any of them
    assert not points_at(attention, [(0.38, 0, 1, 1)])  # covers most of the cell, not its centre
    assert not points_at(attention, [(0.2, 0.3, 0.3, 0.4)])  # x and y swapped
    # The second row, third column: centre (5/8, 3/4), and no other cell's centre is in this box.
    assert points_at(one_hot(1, 2, rows=2, columns=4), [(0.6, 0.7, 0.65, 0.8)])


def test_the_centre_is_where_the_centre_baseline_looks() -> None:
    attention = center_weighted_attention(7, 7)
    torch.testing.assert_close(attention, attention.T)
    assert attention.sum().item() == pytest.approx(1)
    # The next cell is 1/7 away: exp(-(1/7)^2 / (2 * 0.25^2)) = exp(-0.163265) = 0.84936.
    assert (attention[3, 4] / attention[3, 3]).item() == pytest.approx(0.84936, abs=1e-4)
    # On a grid of another shape the spread stays a fraction of each side: on 14 columns the cells
    # beside the middle are 1/28 and 3/28 away: exp(-(9 - 1) / 28^2 / (2 * 0.25^2)) = 0.92161.
    wide = center_weighted_attention(7, 14)
    assert (wide[3, 8] / wide[3, 7]).item() == pytest.approx(0.92161, abs=1e-4)


def test_attention_on_people_by_hand(tmp_path: Path) -> None:
    # The person is the left half of the photo; the dog beside it does not count.
    boxes = write(
        tmp_path / "b.json", [("person", [0, 0, 50, 80]), ("dog", [50, 0, 50, 80])],
        width=100, height=80,
    )  # fmt: skip
    left = torch.tensor([[0.6, 0.1], [0.2, 0.1]])  # 0.8 of it on the left, the highest cell too
    right = torch.tensor([[0.1, 0.5], [0.2, 0.2]])  # 0.3
    one = captioned("man and woman", attention=torch.stack([left, right, right]))
    other = captioned("man", attention=right[None], id=8)  # has no boxes
    scores = measure_grounding([one, other], read_boxes(boxes, SQUASH), people=True)
    intervals = scores.pop("intervals")
    expected = {"words": 2, "attention": 0.55, "uniform": 0.5, "center_weighted": 0.5}
    assert scores == pytest.approx({**expected, "pointing": 0.5})
    assert isinstance(intervals, dict) and intervals["attention"] == pytest.approx([0.55, 0.55])
    with pytest.raises(DataError, match="no caption names people"):
        measure_grounding(
            [captioned("dog", attention=left[None])], read_boxes(boxes, SQUASH), people=True
        )
    content = json.loads(boxes.read_text())
    del content["categories"], content["annotations"][1]  # every box is then a person's
    boxes.write_text(json.dumps(content))
    again = measure_grounding([one, other], read_boxes(boxes, SQUASH), people=True)
    assert (again["words"], again["attention"]) == (2, pytest.approx(0.55))


def test_objects_are_measured_at_the_last_word_of_their_name(tmp_path: Path) -> None:
    path = write(
        tmp_path / "b.json",
        [("person", [0, 0, 4, 8]), ("hot dog", [4, 0, 4, 8]), ("kite", [0, 0, 4, 4])],
        width=8, height=8,
    )  # fmt: skip
    boxes = read_boxes(path, SQUASH)
    left, right = one_hot(0, 0), torch.tensor([[0.0, 0.5], [0.0, 0.5]])
    said = captioned("man hot dog cat", attention=torch.stack([right, left, right, left]))
    found = measure_grounding([said], boxes, people=False)
    assert found["words"] == 1 and found["attention"] == 1
    with pytest.raises(DataError, match="no caption names an object"):
        measure_grounding([captioned("cat", attention=right[None])], boxes, people=False)


def test_boxes_are_placed_on_what_the_model_sees(tmp_path: Path) -> None:
    # Of a photo of 200 x 100 the crop shows the middle: x from 50 to 150.
    boxes = write(tmp_path / "b.json", [("circle", [100, 0, 50, 50])], width=200, height=100)
    (circle,) = read_boxes(boxes, CROP)[7]
    assert circle.box == pytest.approx((0.5, 0, 1, 0.5))
    (squashed,) = read_boxes(boxes, SQUASH)[7]
    assert squashed.box == pytest.approx((0.5, 0, 0.75, 0.5))
    # Attention at x 0.875 of the grid is inside what the crop shows, beside it when squashed.
    attention = one_hot(0, 3, rows=2, columns=4)
    said = [captioned("circle", attention=attention[None])]
    assert scene_pointing(said, boxes=boxes, transform=CROP) == 100
    assert scene_pointing(said, boxes=boxes, transform=SQUASH) == 0


def test_the_first_shape_points_at_the_first_object_and_the_second_at_the_second(
    tmp_path: Path,
) -> None:
    boxes = write(
        tmp_path / "b.json", [("star", [0, 0, 5, 10]), ("heart", [5, 0, 5, 10])],
        width=10, height=10,
    )  # fmt: skip
    left, right = one_hot(0, 0), one_hot(1, 1)
    for words, maps, share in (
        (["star", "above", "heart"], [left, left, right], 100),
        (["star", "above", "heart"], [left, left, left], 50),  # both at the star
        (["heart", "star"], [left, right], 0),  # wrong shapes at the right places
        (["star"], [left], 50),  # the heart is missed
        ([], [], 0),
    ):
        attention = torch.stack(maps) if maps else torch.zeros(0, 2, 2)
        said = [captioned(" ".join(words), attention=attention)]
        assert scene_pointing(said, boxes=boxes, transform=SQUASH) == share, words


def test_facts_of_captions_by_hand() -> None:
    said = [("a dog", "a dog"), ("a dog", "dog"), ("dog", ""), ("a red cat", "")]
    facts = model_facts([captioned(text, reference) for text, reference in said])
    assert facts == {"different": 3, "exact": 25, "words": 2}


IMAGE = '"images": [{"id": 1, "width": 2, "height": 2}]'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "no list images and annotations"),
        ("[" * 100_000, "is not JSON"),  # deeper than Python can read
        ('{"images": [{"id": 1}], "annotations": []}', "invalid value .'width'"),
        (f'{{{IMAGE}, "annotations": [{{"image_id": 1}}]}}', "invalid value .'bbox'"),
        (
            f'{{{IMAGE}, "annotations": [{{"image_id": 1, "bbox": [0, 0, -1, NaN]}}]}}',
            "bbox has the size -1 x nan",
        ),
    ],
)
def test_files_without_boxes_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "boxes.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_boxes(path, SQUASH)
