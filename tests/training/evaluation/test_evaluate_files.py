"""The files of `captioner evaluate` are read before any photo, and all that is wrong is said."""

from __future__ import annotations

import json
from pathlib import Path

from captioner_training.evaluation.predictions import (
    Target,
    check_replaceable,
    write_predictions,
)
from tests import launcher


def captions(path: Path, *ids: int) -> None:
    path.write_text(
        json.dumps(
            {
                "images": [{"id": at, "file_name": f"{at}.jpg"} for at in ids],
                "annotations": [{"image_id": at, "caption": "a dog"} for at in ids],
            }
        )
    )


def boxes(path: Path, image: int) -> None:
    path.write_text(
        json.dumps(
            {
                "images": [{"id": image, "width": 8, "height": 8}],
                "annotations": [{"image_id": image, "bbox": [0, 0, 4, 4]}],
            }
        )
    )


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    captions(tmp_path / "split.json", 1, 2)
    captions(tmp_path / "less.json", 1)
    boxes(tmp_path / "others.json", 9)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "photos").mkdir()
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / "photos" / name).touch()
    split = "evaluate --captions split.json"
    side = "--boxes others.json --corpus less.json --training broken.json --compare split.json"
    told = (
        "others.json has boxes for 1 images, but for none of this split",
        "--corpus less.json is not the whole of this split: it lacks 1 of its 2 images, 2.jpg",
        "broken.json is not JSON",
        "split.json is no report.json",
    )
    wanted = {
        f"{split} --images photos {side}": told,
        f"{split} --score none.json {side}": (*told, "there is no file none.json"),
        f"{split} --images photos {side} --predictions no/p.json --checkpoint split.json": (
            "there is no folder no",
            "split.json is cut off, damaged or not a safetensors file",
            *told,
        ),
        # A split that cannot be read keeps no other file from being looked at.
        "evaluate --captions broken.json --images photos --corpus less.json --boxes none.json": (
            "broken.json is not JSON",
            "there is no file none.json",
        ),
    }
    found = launcher.refuse(*wanted, cwd=tmp_path)
    for messages, (status, _, said) in zip(wanted.values(), found, strict=True):
        assert status == "1"
        lines = said.splitlines()
        assert len(lines) == len(messages), said
        for message in messages:
            assert sum(message in line for line in lines) == 1, said


def test_nothing_is_written_over_but_predictions_and_reports(tmp_path: Path) -> None:
    captions(tmp_path / "split.json", 1)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(b"a photo")
    (tmp_path / "batch.jsonl").write_text('{"image": "1.jpg", "caption": "a", "words": []}\n')
    (tmp_path / "note.json").write_text('{"a": 1}')
    for name, text in (("mine", "notes"), ("other", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"report.{'html' if name == 'mine' else 'json'}").write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    split = "evaluate --captions split.json --images photos"
    lost = ("photos/1.jpg", "batch.jsonl", "note.json")
    found = launcher.refuse(
        *(f"{split} --predictions {name}" for name in lost),
        f"{split} --report mine",
        f"{split} --report other",
        cwd=tmp_path,
    )
    wanted = [f"{name} is there, and no file of predictions" for name in lost]
    wanted += ["mine/report.html is there, and no report", "other/report.json is there, and no"]
    for message, (status, _, said) in zip(wanted, found, strict=True):
        assert status == "1" and message in said
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_predictions_of_an_earlier_run_may_be_replaced(tmp_path: Path) -> None:
    for name in ("empty.jsonl", "some.jsonl", "some.json"):
        (tmp_path / name).touch()
        for caption in ("a dog", "a cat"):
            check_replaceable(tmp_path / name)
            target = Target(id=1, name="1.jpg", references=())
            write_predictions(tmp_path / name, [target], [caption], [-1.0])
            assert caption in (tmp_path / name).read_text()
        assert "a dog" not in (tmp_path / name).read_text()
