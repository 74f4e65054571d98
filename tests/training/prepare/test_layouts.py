"""Published splits are kept in every layout, and copies of a photo stay together."""

from __future__ import annotations

import csv
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captioner_training.prepare.sources import SourceData
from tests.training.prepare import layouts
from tests.training.prepare.conftest import read, write_table
from tests.training.prepare.layouts import LAYOUTS, ROWS, photo, write_photo

PUBLISHED = {caption: split for _, caption, split in ROWS}
SPELLINGS = {
    "train": ["train", "Train", "TRAIN", "training", "Training"],
    "val": ["val", "Val", "valid", "validation", "Validation", "VALIDATION", "dev"],
    "test": ["test", "Test", "TEST", "testing"],
}
Layout = Callable[..., list[object]]


def splits(data: SourceData) -> dict[str, str]:
    return {caption: image.split for image in data.images for caption in image.captions}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    names=st.fixed_dictionaries({name: st.sampled_from(of) for name, of in SPELLINGS.items()}),
    level=st.sampled_from(["", "data", "default", "my set/v1.0"]),
    suffix=st.sampled_from([".csv", ".jsonl"]),
)
def test_a_published_split_is_kept(
    tmp_path_factory: pytest.TempPathFactory,
    layout: Layout, names: dict[str, str], level: str, suffix: str,
) -> None:  # fmt: skip
    root = tmp_path_factory.mktemp("set")
    data = read(*layout(root, names, level, suffix))
    assert splits(data) == PUBLISHED
    assert data.source["splits"] == "as in the data" and not data.problems


@pytest.mark.parametrize("with_text", [False, True])
def test_photos_outside_any_split_are_listed_and_left_out(tmp_path: Path, with_text: bool) -> None:
    """A cover without a caption, a copy of a photo in train, is outside too."""
    names = {"train": "train", "val": "Val", "test": "test"}
    command = layouts.sidecars(tmp_path, names, "data", "")
    cover = tmp_path / "data" / "99.jpg"
    cover.write_bytes(photo("99.jpg" if with_text else "3.jpg"))
    if with_text:
        cover.with_suffix(".txt").write_text("a cover")
    data = read(*command)
    assert data.source["splits"] == "as in the data" and splits(data) == PUBLISHED
    assert data.problems.notes() == ["photos outside any split, left out: 1 (data/99.jpg)"]
    data.problems.write(tmp_path)
    with (tmp_path / "problems.csv").open(encoding="utf-8-sig", newline="") as file:
        assert [row["file"] for row in csv.DictReader(file)] == ["data/99.jpg"]
    if with_text:  # asked for, it is drawn
        data = read(*command, val=0)
        assert splits(data) == {**PUBLISHED, "a cover": "train"}
        assert data.source["splits"] == "as in the data; rest drawn, 100/0/0"


@pytest.mark.parametrize(
    ("test", "shares", "origin"),
    [
        ("test", {"val": 0.2}, "as in the data; rest drawn, 80/20/0"),
        ("train", {"val": 0.2, "test": 0.25}, "drawn, 55/20/25"),
    ],
)
def test_splits_are_drawn_from_train_on_request(
    tmp_path: Path, test: str, shares: dict[str, float], origin: str
) -> None:
    names = {"train": "train", "val": "train", "test": test}
    data = read(*layouts.metadata_above(tmp_path, names, "", ".csv"), **shares)
    assert data.source["splits"] == origin
    assert {*splits(data).values()} == {"train", "val", "test"}
    if test == "test":
        published = {caption for caption, split in PUBLISHED.items() if split == "test"}
        assert {caption for caption, split in splits(data).items() if split == "test"} == published


def test_a_folder_above_the_photos_is_no_split(tmp_path: Path) -> None:
    root = tmp_path / "test" / "photos"
    layouts.sidecars(root, dict.fromkeys(SPELLINGS, ""), "", "")
    rows = {f"{root}/{name}": caption for name, caption, _ in ROWS}
    table = write_table(root / "table.csv", rows)
    assert read("csv", table).source["splits"] == "drawn, 90/10/0"


def test_a_column_of_splits_is_preferred_to_the_names_of_files(tmp_path: Path) -> None:
    tables = [tmp_path / f"captions_{split}.csv" for split in ("train", "val")]
    for number, (table, split) in enumerate(zip(tables, ("test", ""), strict=True)):
        write_photo(tmp_path / f"{number}.jpg")
        write_table(table, [f"{number}.jpg,of {number},{split}"], "image,caption,split")
    write_table(tmp_path / "captions.txt", ["0.jpg,of another"])  # folder: tables of splits first
    for command in (["csv", *tables], ["folder", tmp_path]):
        assert splits(read(*command)) == {"of 0": "test", "of 1": "val"}


def test_archives_may_be_named_after_their_split(tmp_path: Path) -> None:
    command = layouts.table_of_names(tmp_path, {name: name for name in SPELLINGS}, "", ".csv")
    for split, name in ("train", "photos-train"), ("val", "Val2014"), ("test", "testing"):
        shutil.make_archive(str(tmp_path / "packed" / name), "zip", tmp_path / split)
    data = read(*command[:-1], *sorted((tmp_path / "packed").iterdir()))
    assert splits(data) == PUBLISHED


def test_a_file_named_after_a_split_is_of_that_split(tmp_path: Path) -> None:
    layouts.write_parquet(tmp_path, lambda _: tmp_path / "train-00000-of-00002.parquet")
    data = read("parquet", tmp_path / "train-00000-of-00002.parquet")
    assert {*splits(data).values()} == {"train"}
    layouts.table_of_names(tmp_path, dict.fromkeys(SPELLINGS, "photos"), "", ".csv")
    table = (tmp_path / "captions.csv").rename(tmp_path / "train.csv")
    assert {*splits(read("csv", table, "--images", tmp_path)).values()} == {"train"}
    assert read("csv", table, "--images", tmp_path, val=0.1).source["splits"] == "drawn, 90/10/0"


def test_photos_beside_a_folder_named_after_a_split_are_listed(tmp_path: Path) -> None:
    """Classes named train, bus and car: --val draws from all of them."""
    names = {"train": "train", "val": "bus", "test": "car"}
    command = layouts.sidecars(tmp_path, names, "", "")
    data = read(*command)
    assert "photos outside any split, left out: 9 (bus/12.jpg" in "\n".join(data.problems.notes())
    assert {*splits(data).values()} == {"train"} and len(data.images) == 12
    data = read(*command, val=0.3)
    assert data.source["splits"] == "drawn, 70/30/0" and len(data.images) == len(ROWS)


@pytest.mark.parametrize("named", [(), (0.3, "test"), (0.5, "val"), (1.0, "any")])
def test_copies_of_a_photo_are_in_one_split(tmp_path: Path, named: tuple[Any, ...]) -> None:
    """30 photos with two copies each: under another name, and in a zip file; in any order."""
    with zipfile.ZipFile(tmp_path / "more.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(30):
            (tmp_path / f"{n}.jpg").write_bytes(photo(f"{n}.jpg"))
            (tmp_path / f"again-{n}.jpg").write_bytes(photo(f"{n}.jpg"))
            archive.writestr(f"packed-{n}.jpg", photo(f"{n}.jpg"))
    names = [f"{kind}{n}.jpg" for n in range(30) for kind in ("", "again-", "packed-")]
    seen = []
    for seed in range(3):
        random.Random(seed).shuffle(names)
        rows = []
        for name in names:
            chance, split = random.Random(name), ""
            if named and chance.random() < named[0]:
                split = chance.choice(["train", "val", "test"]) if named[1] == "any" else named[1]
            rows.append(f"{name},a photo called {name},{split}")
        table = write_table(tmp_path / "captions.csv", rows, "image,caption,split")
        data = read("csv", table, **({} if named == (1.0, "any") else {"val": 0.3, "test": 0.2}))
        of_photo: dict[str, set[str]] = {}
        for image in data.images:
            of_photo.setdefault(image.file_name.split("-")[-1], set()).add(image.split)
        assert len(of_photo) == 30 and all(len(found) == 1 for found in of_photo.values())
        seen.append({image.file_name: image.split for image in data.images})
    assert seen[0] == seen[1] == seen[2]


def test_copies_inside_parquet_are_copies_too(tmp_path: Path) -> None:
    names = {"train": "train", "val": "val", "test": "test"}
    layouts.parquet_folders(tmp_path, names, "", "")
    layouts.write_parquet(
        tmp_path, lambda split: tmp_path / "test" / f"copy{[*names].index(split)}.parquet"
    )
    data = read("folder", tmp_path)
    assert {image.split for image in data.images} == {"test"}
    assert "copies in two splits, left out of one: 17 (" in "\n".join(data.problems.notes())
