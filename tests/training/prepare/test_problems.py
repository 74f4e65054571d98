"""Problems of a data set: all are reported together, listed in a file, and can be left out."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import pytest

from captioner import DataError
from captioner_training.data.manifest import Manifest
from captioner_training.data.reading import read_coco, read_dataset
from captioner_training.prepare import assembly
from captioner_training.prepare.columns import Columns
from tests.launcher import Run
from tests.training.prepare.conftest import captions_of, coco_json, prepare, read, write_table
from tests.training.prepare.layouts import photo, write_photo


def test_all_problems_are_reported_together_and_skip_bad_continues(
    run_main: Run, bare: Path, tmp_path: Path
) -> None:
    shutil.copy(bare / "0.jpg", bare / "copy-of-0.jpg")
    (bare / "1.jpg").write_bytes(photo("1.jpg")[:-300])
    (bare / "text.jpg").write_text("no image")
    train = {1: "0.jpg", 2: "1.jpg", 3: "2.jpg", 4: "3.jpg", 5: "gone.jpg", 6: "text.jpg"}
    captions = [(1, "one"), (2, "two"), (3, " "), (3, "three"), (5, "five"), (6, "six"), (99, "?")]
    one = coco_json(tmp_path / "one.json", train, captions)
    content = json.loads(one.read_text())
    content["images"].append({"id": 1, "file_name": "5.jpg"})
    one.write_text(json.dumps(content))
    val = {4: "3.jpg", 7: "copy-of-0.jpg", 3: "2.jpg"}
    two = coco_json(tmp_path / "two.json", val, [(4, "four"), (7, "copy"), (3, "three")])
    command = ("coco-json", f"train={one}", f"val={two}", "--images", bare)
    message = prepare(run_main, tmp_path / "to", *command, status=1)
    assert "the data set" in message and "--skip-bad" in message
    lines = dict(line.strip().split(": ", 1) for line in message.splitlines() if ": " in line)
    assert lines["missing image"] == "1 (gone.jpg)"
    assert lines["image without caption"] == "1 (3.jpg)"
    assert lines["empty caption"] == "1 (2.jpg)"
    assert lines["duplicate id"] == "1 (1 in train)"
    assert lines["caption of an unknown image"].startswith("1 (image 99 in")
    assert lines["corrupt image"].startswith("2 (1.jpg is cut off or damaged")
    assert "text.jpg is not a JPEG, PNG" in lines["corrupt image"]
    assert (  # by its content, and by its file
        "note: copies in two splits, left out of one: 2 (0.jpg in train is copy-of-0.jpg in val; "
        "2.jpg in train is 2.jpg in val)"
    ) in message
    message = prepare(run_main, tmp_path / "to", *command, "--skip-bad")
    assert "left out: " in message and "corrupt image: 2" in message
    # The scored photos stay; train keeps only the photos without a copy in val, which is none.
    manifest = Manifest.load(tmp_path / "to")
    assert [*manifest.splits] == ["val"]
    assert manifest.skipped["missing image"] == 1 and manifest.skipped["corrupt image"] == 2
    found = [(image.name, image.captions) for image in read_dataset(tmp_path / "to", split="val")]
    assert found == [("3.jpg", ("four",)), ("copy-of-0.jpg", ("copy",)), ("2.jpg", ("three",))]
    table = write_table(tmp_path / "t.csv", {"text.jpg": "one"})
    only = ("csv", table, "--images", bare, "--skip-bad")
    assert "has no usable image" in prepare(run_main, tmp_path / "no", *only, status=1)


def test_everything_that_was_left_out_stands_in_one_file(
    run_main: Run, bare: Path, tmp_path: Path
) -> None:
    (bare / "1.jpg").write_bytes(photo("1.jpg")[:200])
    formulas = ["=1.jpg", "+1.jpg", "-1.jpg", "@SUM.jpg"]
    table = write_table(tmp_path / "list.csv", [
        "0.jpg;a dog", "1.jpg;a cat", "2.jpg;", ";lost", "gone.jpg;a hen", "3.jpg;a cow",
        "0.jpg;...", *(f"{name};a formula" for name in formulas),
    ], "Image;Text")  # fmt: skip
    command = ("csv", table, "--images", bare, "--val", 0)
    said = prepare(run_main, tmp_path / "to", *command, status=1)
    problems = tmp_path / "to" / "problems.csv"
    assert f"\n{problems} lists all of them." in said
    assert problems.read_bytes().startswith(b"\xef\xbb\xbf")  # by which Excel knows UTF-8
    with problems.open(encoding="utf-8-sig", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [*rows[0]] == ["row", "file", "problem"]
    assert {(row["problem"].split(":")[0], row["row"], row["file"]) for row in rows} == {
        ("corrupt image", "line 3", "1.jpg"),
        ("empty caption", "line 4", "2.jpg"),
        ("incomplete row", "line 5", "line 5 names no image"),
        ("missing image", "line 6", "gone.jpg"),
        ("empty caption", "line 8", "0.jpg"),
        *(("missing image", f"line {at}", f"'{name}") for at, name in enumerate(formulas, 9)),
    }
    said = prepare(run_main, tmp_path / "to", *command, "--skip-bad")
    assert f"note: {problems} lists" in said
    photos = read_dataset(tmp_path / "to", split="train")
    assert [image.name for image in photos] == ["0.jpg", "3.jpg"]
    assert "there is no split val, which training needs" in said and "--val 0.3" in said
    with pytest.raises(DataError, match=r"no split 'val'; it has train.* --val 0\.3"):
        read_dataset(tmp_path / "to", split="val")


def test_a_repaired_data_set_is_resumed(
    run_main: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "SHARD_IMAGES", 2)
    (photos / "5.jpg").write_bytes(photo("5.jpg")[:-300])
    command, to = ("folder", photos, "--val", 0), tmp_path / "to"
    for size in ("--size", 12), ():  # shards of another size are not reused
        said = prepare(run_main, to, *command, *size, status=1)
        assert "corrupt image: 1 (5.jpg" in said and "reusing" not in said
    assert (to / "problems.csv").exists()
    (photos / "5.jpg").write_bytes(photo("5.jpg"))
    assert "reusing 6 of 8 images of an earlier run" in prepare(run_main, to, *command)
    assert not (to / "problems.csv").exists()  # there is no problem left
    before = Manifest.load(to).identity
    # Another photo of the same size, or another caption, is another data set.
    status = (photos / "3.jpg").stat()
    os.utime(photos / "3.jpg", (1, 1))
    assert "has another data set or version" in prepare(run_main, to, *command, status=1)
    os.utime(photos / "3.jpg", ns=(status.st_atime_ns, status.st_mtime_ns))
    prepare(run_main, to, *command)
    (photos / "5.txt").write_text("a crowd")
    assert "has another data set or version" in prepare(run_main, to, *command, status=1)
    prepare(run_main, to, *command, "--force")
    assert Manifest.load(to).identity != before  # cached grids are of the old one


def test_captions_that_are_not_text_are_problems(bare: Path, tmp_path: Path) -> None:
    path = coco_json(tmp_path / "one.json", {7: "0.jpg", 8: "1.jpg"}, [(8, "x"), (7, "y")])
    content = json.loads(path.read_text())
    for odd in (None, 5, ["a", "b"], "🐶 ..."):
        content["annotations"].append({"image_id": 8, "caption": odd})
    path.write_text(json.dumps(content))
    data = read("coco-json", path, "--images", bare)
    assert data.problems.counts == {"caption that is not text": 3, "empty caption": 1}
    assert f"None for image 8 in {path}" in data.problems.report()
    assert captions_of(data) == {"0.jpg": ("y",), "1.jpg": ("x",)}
    with pytest.raises(DataError, match="image 8 has the caption None, which is not text"):
        read_coco(path, bare)


@pytest.mark.parametrize("name", ["{outside}/secret.jpg", "../outside/secret.jpg"])
def test_plain_captions_fetch_no_photo_from_elsewhere(
    run_main: Run, bare: Path, tmp_path: Path, name: str
) -> None:
    """Neither to train on nor to be scored: a name leads to no file beside the folder."""
    outside = tmp_path / "outside"
    write_photo(outside / "secret.jpg")
    (bare / "b").mkdir()
    plain = {1: f"{bare}/0.jpg", 2: "b/../1.jpg"}  # these lie inside
    whole = coco_json(tmp_path / "whole.json", plain, [(1, "x"), (2, "y")])
    assert len(read_coco(whole, bare)) == 2
    name = name.format(outside=outside)
    path = coco_json(tmp_path / "captions.json", plain | {3: name}, [(1, "x"), (2, "y"), (3, "z")])
    result = run_main("evaluate", "--captions", path, "--images", bare)
    assert result.returncode == 1 and f"images outside {bare}: 1 (first: {name})" in result.stderr
    root = tmp_path / "root"
    shutil.copytree(bare, root / "train")
    shutil.copytree(outside, root / "outside")
    shutil.copy(path, root / "captions_train.json")
    with pytest.raises(DataError, match=f"images outside {root}/train"):
        read_dataset(root, split="train")


def test_wrong_paths_suggest_similar_ones(photos: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "captions.csv", {"0.jpg": "a"})
    for arguments, reason in (
        (("folder", tmp_path / "photo"), rf"no folder {tmp_path}/photo, did you mean {photos}\?"),
        (("csv", photos / "0.text"), rf"no file {photos}/0\.text, did you mean {photos}/0\.txt\?"),
        (
            ("csv", table, "--images", tmp_path / "phtoos"),
            rf"no file or folder {tmp_path}/phtoos, did you mean {photos}\?",
        ),
        (("folder", table), r"captions\.csv is a file: name its folder"),
        (("csv", photos), f"{photos} is a folder: name a file in it"),
    ):
        with pytest.raises(DataError, match=reason):
            read(*arguments, columns=Columns())
