"""Boxes on the grid, and what attention leaves in them; numbers are worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from captioner import DataError
from captioner.vision.transform import Transform, TransformConfig
from captioner_training.evaluation.boxes import check_boxes, read_boxes
from captioner_training.evaluation.captioned import Captioned
from captioner_training.evaluation.grounding import object_grounding, person_grounding
from captioner_training.evaluation.hallucination import categories_there
from captioner_training.evaluation.validation import scene_pointing

SQUASH = Transform(TransformConfig(mode="squash", size=64))
CROP = Transform(TransformConfig(mode="crop", size=64))


def captioned(words: list[str], attention: Tensor, *, id: int = 7) -> Captioned:
    image: Any = SimpleNamespace(id=id)
    hypothesis: Any = None
    return Captioned(image=image, hypothesis=hypothesis, words=words, attention=attention)


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


def test_attention_on_people_by_hand(tmp_path: Path) -> None:
    # The person is the left half of the photo; the dog beside it does not count.
    boxes = write(
        tmp_path / "b.json", [("person", [0, 0, 50, 80]), ("dog", [50, 0, 50, 80])],
        width=100, height=80,
    )  # fmt: skip
    left = torch.tensor([[0.6, 0.1], [0.2, 0.1]])  # 0.8 of it on the left, the highest cell too
    right = torch.tensor([[0.1, 0.5], [0.2, 0.2]])  # 0.3
    one = captioned(["man", "and", "woman"], torch.stack([left, right, right]))
    other = captioned(["man"], right[None], id=8)  # has no boxes
    scores = person_grounding([one, other], read_boxes(boxes, SQUASH))
    intervals = scores.pop("intervals")
    wanted = {"words": 2, "attention": 0.55, "uniform": 0.5, "center_weighted": 0.5}
    # Of four equal cells in the middle the first one counts, which is on the left.
    chance = {"pointing": 0.5, "pointing_uniform": 0.5, "pointing_center": 1}
    assert scores == pytest.approx({**wanted, **chance})
    assert isinstance(intervals, dict) and intervals["attention"] == pytest.approx([0.55, 0.55])
    with pytest.raises(DataError, match="whose captions mention people"):
        person_grounding([captioned(["dog"], left[None])], read_boxes(boxes, SQUASH))


LOOKS = {
    # Of 2 x 2 cells the box is the top left one.
    "always the box": (torch.tensor([[1.0, 0], [0, 0]]), 1.0, 1),
    "always uniform": (torch.full((2, 2), 0.25), 0.25, 1),  # of equal cells the first counts
    "always elsewhere": (torch.tensor([[0, 0], [0, 1.0]]), 0.0, 0),
}


@pytest.mark.parametrize("kind", LOOKS)
def test_models_whose_attention_is_known_get_exactly_what_is_worked_out(
    tmp_path: Path, kind: str
) -> None:
    boxes = read_boxes(
        write(
            tmp_path / "b.json", [("person", [0, 0, 50, 40]), ("hot dog", [0, 0, 50, 40])],
            width=100, height=80,
        ),
        SQUASH,
    )  # fmt: skip
    attention, mass, points = LOOKS[kind]
    chance = {"uniform": 0.25, "center_weighted": 0.25, "pointing_uniform": 0.25}
    for grounding, words in ((person_grounding, ["man"]), (object_grounding, ["hot", "dog"])):
        nowhere = [torch.full((2, 2), 0.25)] * (len(words) - 1)
        said = captioned(words, torch.stack([*nowhere, attention]))  # at the name's last word
        found = grounding([said, said], boxes)
        assert found["words"] == 2 and found["pointing_center"] == 1
        assert found["attention"] == pytest.approx(mass) and found["pointing"] == points
        assert {name: found[name] for name in chance} == pytest.approx(chance)
        intervals = found["intervals"]
        assert isinstance(intervals, dict) and intervals["attention"] == pytest.approx([mass] * 2)


def test_every_category_is_told_by_itself(tmp_path: Path) -> None:
    path = write(
        tmp_path / "b.json",
        [("person", [0, 0, 4, 8]), ("dog", [4, 0, 4, 8]), ("kite", [0, 0, 4, 4])],
        width=8, height=8,
    )  # fmt: skip
    boxes = read_boxes(path, SQUASH)
    right = torch.tensor([[0.0, 0.5], [0.0, 0.5]])
    found = object_grounding([captioned(["puppy", "cat"], torch.stack([right, right]))], boxes)
    categories = found["categories"]
    assert isinstance(categories, dict) and list(categories) == ["dog"]
    assert found["words"] == categories["dog"]["words"] == 1 and found["attention"] == 1
    assert categories_there(boxes, [8, 7]) == [set(), {"person", "dog", "kite"}]
    with pytest.raises(DataError, match="name their categories"):
        object_grounding([captioned(["cat"], right[None])], boxes)


def test_boxes_are_placed_on_what_the_model_sees(tmp_path: Path) -> None:
    # Of a photo of 200 x 100 the crop shows the middle: x from 50 to 150.
    boxes = write(tmp_path / "b.json", [("circle", [100, 0, 50, 50])], width=200, height=100)
    (circle,) = read_boxes(boxes, CROP)[7]
    assert circle.box == pytest.approx((0.5, 0, 1, 0.5))
    (squashed,) = read_boxes(boxes, SQUASH)[7]
    assert squashed.box == pytest.approx((0.5, 0, 0.75, 0.5))
    # Attention at x 0.875 of the grid is inside what the crop shows, beside it when squashed.
    looks = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    said = [captioned(["circle"], looks[None])]
    assert scene_pointing(said, boxes=boxes, transform=CROP) == 100
    assert scene_pointing(said, boxes=boxes, transform=SQUASH) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"annotations": []}', "it has no list images"),
        ("[]", "no list images and no list annotations"),
        ("{", "is not JSON"),
        ('{"images": [{"id": 1}], "annotations": []}', "lacks 'width'"),
        (
            '{"images": [{"id": 1, "width": 2, "height": 2}], "annotations": [{"image_id": 1}]}',
            "lacks 'bbox'",
        ),
        (
            '{"images": [{"id": 1, "width": 2, "height": 2}], '
            '"annotations": [{"image_id": 1, "bbox": [0, 0, -1, NaN]}]}',
            "a bbox of the size -1 x nan",
        ),
    ],
)
def test_files_without_boxes_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "boxes.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_boxes(path, SQUASH)


def test_boxes_of_other_images_are_refused(tmp_path: Path) -> None:
    boxes = write(tmp_path / "b.json", [("person", [0, 0, 1, 1])], width=2, height=2)
    check_boxes(boxes, SQUASH, ids={7, 8})
    with pytest.raises(DataError, match="for none of this split"):
        check_boxes(boxes, SQUASH, ids={1, 2})
    with pytest.raises(DataError, match="cannot be read: No such file"):
        check_boxes(tmp_path / "none.json", SQUASH, ids={7})
