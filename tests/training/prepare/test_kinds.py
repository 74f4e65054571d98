"""Data sets of each kind, and their problems."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from captioner import DataError
from captioner_training.data.manifest import Manifest
from captioner_training.data.reading import read_coco, read_dataset
from captioner_training.data.scenes import draw_scene
from captioner_training.prepare import assembly
from tests.launcher import Run
from tests.training.prepare.layouts import photo


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six photos: three in one subfolder, three in another."""
    folder = tmp_path / "photos"
    for number in range(6):
        path = folder / ("a" if number < 3 else "b") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_scene(number).image.save(path)
    return folder


def prepared(run: Run, to: Path, *arguments: object) -> dict[str, list[tuple[str, list[str]]]]:
    """Run the command; return names and captions by split."""
    result = run("prepare", *arguments, "--to", to, "--workers", 1)
    assert (result.returncode, result.stdout.strip()) == (0, str(to)), result.stderr
    return {
        split: [(image.name, list(image.captions)) for image in read_dataset(to, split=split)]
        for split in Manifest.load(to).splits
    }


def refused(run: Run, to: Path, *arguments: object, status: int = 1) -> str:
    """Run a command that must not prepare anything; return its standard error."""
    result = run("prepare", *arguments, "--to", to, "--workers", 1)
    assert (result.returncode, result.stdout) == (status, ""), result.stderr
    assert "Traceback" not in result.stderr
    assert not (to / "manifest.json").exists() and not list(to.glob("*.tar"))
    return result.stderr


def test_folder_with_sidecars(run_main: Run, photos: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))):
        path.with_suffix(".txt").write_text(f"scene {number}\n\n  another  line \n", "utf-8")
    (photos / "a" / "0.caption").write_text("Tom &amp; Jerry&#39;s caf&#xE9;, R&D\x7fteam")
    (photos / "b" / "5.txt").rename(photos / "b" / "5.jpg.txt")
    for name in ("README.txt", "Credits.txt"):
        (photos / name).write_text("about")
    found = prepared(run_main, tmp_path / "to", "folder", photos, "--val", 0, "--test", 0)
    more = ["Tom & Jerry's café, R&D team"]
    assert found == {
        "train": [
            (f"{'a' if n < 3 else 'b'}/{n}.jpg",
             [f"scene {n}", "another line", *(more if n == 0 else [])])
            for n in range(6)
        ]
    }  # fmt: skip
    manifest = Manifest.load(tmp_path / "to")
    assert manifest.name == "photos" and manifest.splits["train"].captions == 13
    (photos / "b" / "9.txt").write_text("of no photo")
    said = refused(run_main, tmp_path / "no", "folder", photos)
    assert "caption of an unknown image: 1 (b/9.txt)" in said


def test_a_folder_with_one_table_is_read_by_the_table(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    names = [path.relative_to(photos).as_posix() for path in sorted(photos.rglob("*.jpg"))]
    lines = ["image,caption", *(f"{name},of {name}" for name in names)]
    (photos / "captions.txt").write_text("\n".join(lines))
    packed = tmp_path / "packed"
    packed.mkdir()
    shutil.copy(photos / "captions.txt", packed / "captions.csv")
    shutil.make_archive(str(packed / "photos"), "zip", photos)
    for folder in (photos, packed):
        found = prepared(run_main, tmp_path / f"to {folder.name}", "folder", folder, "--val", 0)
        assert found == {"train": [(name, [f"of {name}"]) for name in names]}
    shutil.copy(packed / "captions.csv", packed / "more.csv")
    said = refused(run_main, tmp_path / "no", "folder", packed)
    assert "has several tables (captions.csv, more.csv): choose one, with `captioner pre" in said
    for name in ("captions.csv", "more.csv"):
        (packed / name).unlink()
    coco_json(packed / "captions.json", {7: "a/0.jpg"}, [(7, "x")])
    prepared(run_main, tmp_path / "coco", "folder", packed, "--val", 0)
    assert [image.id for image in read_dataset(tmp_path / "coco", split="train")] == [7]


def test_archives_of_photos_with_captions_beside_them(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    """As img2dataset writes them: a caption is in two files, and failed downloads have no photo."""
    packed = tmp_path / "few.zip"
    texts = {
        "0.txt": "a dog", "0.json": '{"caption": "a dog", "split": "test"}',
        "1.caption": "a cat", "2.json": '{"caption": "a cow", "split": "dev"}',
        "3.json": '{"status": "failed", "caption": "a hen"}', "4.txt": "a pig",
        "5.txt": "a" * 2**20 + "b",
    }  # fmt: skip
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a/0", "a/1", "a/2", "b/5"):
            archive.write(photos / f"{name}.jpg", f"{name[2:]}.jpg")
            archive.writestr(f"__MACOSX/._{name[2:]}.jpg", b"of the Finder")
        for name, text in texts.items():
            archive.writestr(name, text)
    command = ("folder", packed, "--val", 0, "--test", 0)
    said = refused(run_main, tmp_path / "no", *command)
    assert "image without caption: 1 (few/5.jpg)" in said  # 5.txt has more than a mebibyte
    assert "caption of an unknown image: 1 (few.zip/4)" in said
    assert prepared(run_main, tmp_path / "to", *command, "--skip-bad") == {
        "train": [("few/1.jpg", ["a cat"])],
        "val": [("few/2.jpg", ["a cow"])],
        "test": [("few/0.jpg", ["a dog"])],
    }
    assert Manifest.load(tmp_path / "to").name == "few"


def test_subfolders_called_as_splits_are_splits(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    (photos / "a").rename(photos / "train")
    (photos / "b").rename(photos / "validation")
    for path in photos.rglob("*.jpg"):
        path.with_suffix(".txt").write_text("a scene")
    found = prepared(run_main, tmp_path / "to", "folder", photos)
    assert {split: len(images) for split, images in found.items()} == {"train": 3, "val": 3}


def test_csv_rows_of_an_image_belong_together(run_main: Run, photos: Path, tmp_path: Path) -> None:
    photos = photos.rename(tmp_path / "photos [1]")  # a name, though it could be a pattern
    table = tmp_path / "captions.csv"
    rows = [f'a/{n}.jpg,"one, of {n}",{split}' for n, split in enumerate(["train", "dev", "test"])]
    table.write_text("﻿image,caption,split\n" + "\n".join([*rows, "a/0.jpg,two,"]), "utf-8")
    found = prepared(run_main, tmp_path / "to", "csv", table, "--images", photos)
    assert found == {
        "test": [("a/2.jpg", ["one, of 2"])],
        "train": [("a/0.jpg", ["one, of 0", "two"])],
        "val": [("a/1.jpg", ["one, of 1"])],
    }
    table.write_text("image,caption,split\na/0.jpg,one,../up\n")
    said = refused(run_main, tmp_path / "no", "csv", table, "--images", photos)
    assert "a/0.jpg is in split '../up': use names like train, val, test" in said


def test_csv_with_unusual_columns_and_delimiter(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    table = photos / "results.csv"
    table.write_text('subject| c1| c2| fold\na/0.jpg| one| ["two", "three"]| dev\n', "utf-8")
    found = prepared(
        run_main, tmp_path / "to", "csv", table, "--delimiter", "|",
        "--image-column", "subject", "--caption-column", "c1", "--caption-column", "c2",
        "--split-column", "fold",
    )  # fmt: skip
    assert found == {"val": [("a/0.jpg", ["one", "two", "three"])]}
    for options, message in (
        (("--delimiter", "|"), "the columns subject, c1, c2, fold: name the column of photos"),
        (("--image-column", "image"), "there is no column 'image'"),
        (("--delimiter", "ab"), "must be one character"),
    ):
        assert message in refused(run_main, tmp_path / "no", "csv", table, *options, status=2)


def test_jsonl_with_lists_and_images_in_archives(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "one.tar", "w") as tar:
        tar.add(photos / "a", "a")
    with zipfile.ZipFile(tmp_path / "two.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((photos / "b").iterdir()):
            archive.write(path, f"inner/{path.name}")
    names = ["a/0.jpg", "1.jpg", "inner/3.jpg", "4.jpg"]  # by path, or by base name
    lines = [json.dumps({"file_name": n, "text": [f"of {n}", "b"]}) for n in names]
    (tmp_path / "m.jsonl").write_text("\n".join(lines))
    images = [tmp_path / "one.tar", tmp_path / "*.zip"]
    found = prepared(
        run_main, tmp_path / "to", "jsonl", tmp_path / "m.jsonl", "--images", *images,
        "--val", 0,
    )  # fmt: skip
    assert found == {"train": [(n, [f"of {n}", "b"]) for n in names]}
    stored = read_dataset(tmp_path / "to", split="train")[2]
    # 128 pixels need no shrinking: the bytes are the original's.
    assert stored.store.read(stored.name) == (photos / "b" / "3.jpg").read_bytes()


def test_parquet_is_a_table_too(run_main: Run, photos: Path, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = {
        "file_name": ["a/0.jpg", "a/1.jpg", "b/3.jpg", None],
        "text": [["one", "two"], ["three"], ["four"], ["lost"]],
        "split": ["train", "validation", None, "train"],
        "pixels": [b"\0" * 100] * 4,
    }
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    command = ("parquet", tmp_path / "t.parquet", "--images", photos, "--val", 0)
    assert "incomplete row: 1 (row 4 names no image)" in refused(
        run_main, tmp_path / "no", *command
    )
    assert prepared(run_main, tmp_path / "to", *command, "--skip-bad") == {
        "train": [("a/0.jpg", ["one", "two"]), ("b/3.jpg", ["four"])],
        "val": [("a/1.jpg", ["three"])],
    }
    # Of Hugging Face's structure only the path; and the bytes alone.
    cells = {
        "paths": [{"bytes": None, "path": name} for name in ("a/0.jpg", "b/3.jpg")],
        "bytes": [(photos / name).read_bytes() for name in ("a/0.jpg", "b/3.jpg")],
    }
    for kind, names in ("paths", ["a/0.jpg", "b/3.jpg"]), ("bytes", ["bytes/0.jpg", "bytes/1.jpg"]):
        table = pyarrow.table({"image": cells[kind], "text": ["one", "two"]})
        parquet.write_table(table, tmp_path / f"{kind}.parquet")
        command = ("parquet", tmp_path / f"{kind}.parquet", "--images", photos, "--val", 0)
        found = prepared(run_main, tmp_path / f"to {kind}", *command)
        assert found == {"train": [(names[0], ["one"]), (names[1], ["two"])]}
        stored = read_dataset(tmp_path / f"to {kind}", split="train")
        assert [image.store.read(image.name) for image in stored] == cells["bytes"]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no table PAR1")
    for name, reason in ("bad.parquet", "cannot be read as Parquet"), ("none.parquet", "no file"):
        assert reason in refused(run_main, tmp_path / "no", "parquet", tmp_path / name)


@pytest.mark.parametrize("claimed", [3_000_000_000, 1000])
def test_a_zip_file_with_a_wrong_size_is_not_unpacked(
    run_main: Run, tmp_path: Path, claimed: int
) -> None:
    """Zeros compressed to a thousandth: not more than the limit or the stated size is read."""
    packed = tmp_path / "photos.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.jpg", bytes(50_000_000))
    content = packed.read_bytes()
    assert content.count(struct.pack("<I", 50_000_000)) == 2
    packed.write_bytes(content.replace(struct.pack("<I", 50_000_000), struct.pack("<I", claimed)))
    table = tmp_path / "t.csv"
    table.write_text("image,caption\n1.jpg,zeros\n")
    tracemalloc.start()
    said = refused(run_main, tmp_path / "to", "csv", table, "--images", packed)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert (
        f"corrupt image: 1 (1.jpg cannot be read: {'3,000' if claimed > 1000 else 'Bad CRC'}"
        in said
    )


def test_shards_of_equal_names_and_keys_are_different_photos(run_main: Run, tmp_path: Path) -> None:
    """img2dataset names its shards, and the photos in them, by numbers."""
    for folder, name, caption in ("cc3m", "1.jpg", "a dog"), ("sbu", "2.jpg", "a cat"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        with tarfile.open(tmp_path / "data" / folder / "00000.tar", "w") as tar:
            for member, data in ("000.jpg", photo(name)), ("000.txt", caption.encode()):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    found = prepared(run_main, tmp_path / "to", "folder", tmp_path / "data", "--val", 0)
    images = [("cc3m/00000/000.jpg", ["a dog"]), ("sbu/00000/000.jpg", ["a cat"])]
    assert found == {"train": images}


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "val"), ("a", "b")])
def test_shards_of_equal_names_in_folders_of_splits_keep_their_photos(
    run_main: Run, tmp_path: Path, splits: tuple[str, str]
) -> None:
    """Each caption stays with the photo beside it, also if the photos are given as files."""
    photos: dict[str, bytes] = {}
    for number, split in enumerate(splits):
        folder = tmp_path / "data" / split
        folder.mkdir(parents=True)
        with tarfile.open(folder / "00000.tar", "w") as tar:
            for key in range(6):
                caption = f"photo {key} in {split}"
                photos[caption] = photo(f"{number}-{key}.jpg")
                for name, data in (
                    (f"{key}.jpg", photos[caption]), (f"{key}.txt", caption.encode()),
                ):  # fmt: skip
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    for to, paths in (
        ("folder", [tmp_path / "data"]),
        ("files", sorted((tmp_path / "data").rglob("*.tar"))),
    ):
        found = prepared(
            run_main, tmp_path / to, "folder", *paths, *(["--val", 0] if splits[0] == "a" else [])
        )
        assert {*found} == ({"train"} if splits[0] == "a" else {*splits})
        stored = {
            caption: image.store.read(image.name)
            for split in found
            for image in read_dataset(tmp_path / to, split=split)
            for caption in image.captions
        }
        assert stored == photos


def test_an_encrypted_zip_file_is_a_problem(run_main: Run, tmp_path: Path) -> None:
    packed = tmp_path / "photos.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("1.jpg", b"not to be read")
    content = bytearray(packed.read_bytes())
    for header, flags in (b"PK\x03\x04", 6), (b"PK\x01\x02", 8):
        content[content.index(header) + flags] |= 1
    packed.write_bytes(content)
    (tmp_path / "t.csv").write_text("image,caption\n1.jpg,secret\n")
    said = refused(run_main, tmp_path / "to", "csv", tmp_path / "t.csv", "--images", packed)
    assert "corrupt image: 1 (1.jpg cannot be read: File '1.jpg' is encrypted" in said


def test_rows_that_lack_something(run_main: Run, photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.jsonl"
    rows = [
        '{"image": "a/0.jpg", "caption": "x"}', '{"image": "a/0.jpg"}', '{"image": "a/1.jpg"}',
        '{"caption": "y"}', "[1]", "", '{"image": "a/2.jpg", "caption": ["z", 3]}',
    ]  # fmt: skip
    table.write_text("\n".join(rows))
    message = refused(run_main, tmp_path / "to", "jsonl", table, "--images", photos)
    assert "empty caption: 3 (a/0.jpg; a/1.jpg; a/2.jpg)" in message
    assert "incomplete row: 2 (line 5 is not a JSON object; line 4 names no image)" in message


def coco_json(path: Path, images: dict[int, str], captions: list[tuple[int, str]]) -> Path:
    content = {
        "images": [{"id": key, "file_name": name} for key, name in images.items()],
        "annotations": [
            {"id": i, "image_id": k, "caption": c} for i, (k, c) in enumerate(captions)
        ],
    }
    path.write_text(json.dumps(content))
    return path


def test_coco_json(
    run_main: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = coco_json(tmp_path / "one.json", {7: "a/0.jpg", 8: "a/1.jpg"}, [(8, "x"), (7, "y")])
    two = coco_json(tmp_path / "two.json", {7: "b/3.jpg"}, [(7, "z"), (7, "zz")])
    two.write_text(two.read_text().replace('"id": 7,', '"id": 7, "split": "test",'))
    found = prepared(
        run_main, tmp_path / "to", "coco-json", f"train={one}", f"val={two}",
        "--images", photos,
    )  # fmt: skip
    assert found == {
        "train": [("a/0.jpg", ["y"]), ("a/1.jpg", ["x"])],
        "val": [("b/3.jpg", ["z", "zz"])],  # its own 7: another file, another image
    }
    monkeypatch.chdir(tmp_path)
    shutil.copy(two, "fold=1.json")  # a name, though it could be a split
    found = prepared(run_main, tmp_path / "1", "coco-json", "fold=1.json", "--images", photos)
    assert found == {"test": [("b/3.jpg", ["z", "zz"])]}
    for content, reason in (
        ('{"images": [1], "annotations": []}', "images is not a list of objects"),
        ('{"images": [{"file_name": "1.jpg"}], "annotations": []}', "there is no 'id'"),
    ):
        (tmp_path / "bad.json").write_text(content)
        message = refused(run_main, tmp_path / "no", "coco-json", tmp_path / "bad.json")
        assert f"bad.json is not in COCO's captions format: {reason}" in message
    (tmp_path / "bad.json").write_text("[" * 100_000)  # deeper than Python can read
    message = refused(run_main, tmp_path / "no", "coco-json", tmp_path / "bad.json")
    assert "bad.json: line 1 is not JSON" in message
    message = refused(run_main, tmp_path / "no", "coco-json", tmp_path / "none.json")
    assert f"there is no file {tmp_path}/none.json, did you mean {tmp_path}/one.json?" in message


def test_captions_that_are_not_text_are_problems(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    path = coco_json(tmp_path / "one.json", {7: "a/0.jpg", 8: "a/1.jpg"}, [(8, "x"), (7, "y")])
    content = json.loads(path.read_text())
    for odd in (None, 5, ["a", "b"], "🐶 ..."):
        content["annotations"].append({"image_id": 8, "caption": odd})
    path.write_text(json.dumps(content))
    said = refused(run_main, tmp_path / "to", "coco-json", path, "--images", photos)
    assert f"caption that is not text: 3 (None for image 8 in {path}; 5 for image 8" in said
    assert "empty caption: 1 (a/1.jpg)" in said
    with pytest.raises(DataError, match="image 8 has the caption None, which is not text"):
        read_coco(path, photos)
    found = prepared(
        run_main, tmp_path / "to", "coco-json", f"train={path}", "--images", photos,
        "--skip-bad",
    )  # fmt: skip
    assert found == {"train": [("a/0.jpg", ["y"]), ("a/1.jpg", ["x"])]}


@pytest.mark.parametrize("name", ["{outside}/secret.jpg", "../outside/secret.jpg"])
def test_plain_captions_fetch_no_photo_from_elsewhere(
    run_main: Run, photos: Path, tmp_path: Path, name: str
) -> None:
    """Neither to train on nor to be scored: a name leads to no file beside the folder."""
    outside = photos.parent / "outside"
    outside.mkdir()
    shutil.copy(photos / "a" / "1.jpg", outside / "secret.jpg")
    name = name.format(outside=outside)
    plain = {1: f"{photos}/a/0.jpg", 2: "b/../a/1.jpg"}  # these lie inside, however they are called
    whole = coco_json(tmp_path / "whole.json", plain, [(1, "x"), (2, "y")])
    assert len(read_coco(whole, photos)) == 2
    path = coco_json(tmp_path / "captions.json", plain | {3: name}, [(1, "x"), (2, "y"), (3, "z")])
    message = f"images outside {photos}: 1 (first: {name})"
    result = run_main("evaluate", "--captions", path, "--images", photos)
    assert result.returncode == 1 and message in result.stderr
    root = tmp_path / "root"
    root.mkdir()
    for split in ("train", "val"):
        shutil.copy(path, root / f"captions_{split}.json")
        shutil.copytree(photos, root / split)
        shutil.copytree(outside, root / "outside", dirs_exist_ok=True)
    with pytest.raises(DataError, match=f"images outside {root}/train"):
        read_dataset(root, split="train")


def test_all_problems_are_reported_together_and_skip_bad_continues(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    shutil.copy(photos / "a" / "0.jpg", photos / "copy-of-0.jpg")
    (photos / "a" / "1.jpg").write_bytes((photos / "a" / "1.jpg").read_bytes()[:900])
    (photos / "text.jpg").write_text("no image")
    train = {1: "a/0.jpg", 2: "a/1.jpg", 3: "a/2.jpg", 4: "b/3.jpg", 5: "gone.jpg", 6: "text.jpg"}
    captions = [(1, "one"), (2, "two"), (3, " "), (3, "three"), (5, "five"), (6, "six"), (99, "?")]
    one = coco_json(tmp_path / "one.json", train, captions)
    content = json.loads(one.read_text())
    content["images"].append({"id": 1, "file_name": "b/5.jpg"})
    one.write_text(json.dumps(content))
    val = {4: "b/3.jpg", 7: "copy-of-0.jpg", 3: "a/2.jpg"}
    two = coco_json(tmp_path / "two.json", val, [(4, "four"), (7, "copy"), (3, "three")])
    command = ("coco-json", f"train={one}", f"val={two}", "--images", photos)
    message = refused(run_main, tmp_path / "to", *command)
    assert "the data set" in message and "--skip-bad" in message
    lines = dict(line.strip().split(": ", 1) for line in message.splitlines() if ": " in line)
    assert lines["missing image"] == "1 (gone.jpg)"
    assert lines["image without caption"] == "1 (b/3.jpg)"
    assert lines["empty caption"] == "1 (a/2.jpg)"
    assert lines["duplicate id"] == "1 (1 in train)"
    assert lines["caption of an unknown image"].startswith("1 (image 99 in")
    assert lines["corrupt image"].startswith("2 (a/1.jpg is cut off or damaged")
    assert "text.jpg is not a JPEG, PNG" in lines["corrupt image"]
    assert (  # by its content, and by its file
        "note: copies in two splits, left out of one: 2 (a/0.jpg in train is copy-of-0.jpg in val; "
        "a/2.jpg in train is a/2.jpg in val)"
    ) in message

    result = run_main("prepare", *command, "--workers", 1, "--to", tmp_path / "to", "--skip-bad")
    assert result.returncode == 0, result.stderr
    assert "left out: " in result.stderr and "corrupt image: 2" in result.stderr
    (tmp_path / "t.csv").write_text("image,caption\ntext.jpg,one\n")
    only = ("csv", tmp_path / "t.csv", "--images", photos, "--skip-bad")
    assert "t has no usable image:\n  corrupt image: 1 (" in refused(
        run_main, tmp_path / "no", *only
    )
    # What is scored stays; what is left of train are the images that have no twin in val.
    assert "train" not in Manifest.load(tmp_path / "to").splits
    found = [(image.name, image.captions) for image in read_dataset(tmp_path / "to", split="val")]
    assert found == [("b/3.jpg", ("four",)), ("copy-of-0.jpg", ("copy",)), ("a/2.jpg", ("three",))]


def test_a_repaired_data_set_is_resumed(
    run_main: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "SHARD_IMAGES", 2)
    whole = (photos / "b" / "4.jpg").read_bytes()
    (photos / "b" / "4.jpg").write_bytes(whole[:700])
    for path in photos.rglob("*.jpg"):
        path.with_suffix(".txt").write_text("a scene")
    command = ("folder", photos, "--val", 0)
    to = tmp_path / "to"
    for size in ("--size", 64), ():  # shards of another size are not reused
        said = refused(run_main, to, *command, *size)
        assert "corrupt image: 1 (b/4.jpg" in said and "reusing" not in said
    (photos / "b" / "4.jpg").write_bytes(whole)
    assert (to / "problems.csv").exists()
    command = ("prepare", *command, "--workers", 1, "--to", to)
    result = run_main(*command)
    assert result.returncode == 0, result.stderr
    assert "reusing 4 of 6 images of an earlier run" in result.stderr
    assert not (to / "problems.csv").exists()  # there is no problem left
    before = Manifest.load(to).identity
    # Another photo of the same size, or another caption, is another data set.
    photo = photos / "b" / "3.jpg"
    status = photo.stat()
    os.utime(photo, (1, 1))
    assert "has another data set or version" in run_main(*command).stderr
    os.utime(photo, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run_main(*command).returncode == 0
    (photos / "b" / "5.txt").write_text("a crowd")
    assert "has another data set or version" in run_main(*command).stderr
    assert run_main(*command, "--force").returncode == 0
    assert Manifest.load(to).identity != before  # cached grids are of the old one


def test_photos_are_stored_as_a_viewer_sees_them(run_main: Run, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    picture = Image.new("RGB", (800, 400), "blue")
    picture.paste("red", (0, 0, 400, 400))  # the left half
    exif = Image.Exif()
    for turn in (5, 6):  # mirrored along its diagonal, turned a quarter clockwise: red on top
        exif[0x0112] = turn
        picture.save(folder / f"turned{turn}.jpg", exif=exif, quality=95)
    picture.resize((80, 40)).save(folder / "small-turned.jpg", exif=exif)
    picture.resize((100, 150)).save(folder / "exact.jpg")
    Image.new("RGBA", (300, 900), (0, 0, 0, 0)).save(folder / "clear.png")  # shown on white
    Image.new("RGB", (90, 50), "green").save(folder / "small.png")
    for path in list(folder.iterdir()):
        path.with_suffix(".txt").write_text("a caption")
    to = tmp_path / "to"
    prepared(run_main, to, "folder", folder, "--size", 100, "--quality", 30, "--val", 0)
    rows = {row.file_name: row for row in Manifest.load(to).rows(to, "train")}
    for turn in (5, 6):
        assert (rows[f"turned{turn}.jpg"].width, rows[f"turned{turn}.jpg"].height) == (400, 800)
    assert (rows["clear.png"].width, rows["clear.png"].height) == (300, 900)
    stored = {}
    with tarfile.open(to / "train-00000.tar") as tar:
        for name, row in rows.items():
            file = tar.extractfile(f"{row.key}.jpg")
            assert file is not None
            file = io.BytesIO(file.read())
            if name == "exact.jpg":  # not larger than asked for: the bytes are the original's
                assert file.getvalue() == (folder / name).read_bytes()
            else:
                picture.save(coarse := io.BytesIO(), "JPEG", quality=30)
                tables = [Image.open(jpeg).quantization for jpeg in (file, coarse)]
                assert tables[0] == tables[1]
            stored[name] = Image.open(file)
            info = tar.extractfile(f"{row.key}.json")
            assert info is not None
            assert json.load(info) == {
                "id": name, "file_name": name, "split": "train", "captions": ["a caption"],
                "width": row.width, "height": row.height,
            }  # fmt: skip
    for turn in (5, 6):
        turned = stored[f"turned{turn}.jpg"]
        assert turned.size == (100, 200)
        pixels = [turned.getpixel((50, y)) for y in (20, 180)]
        assert pixels[0][0] > 200 > 50 > pixels[0][2] and pixels[1][2] > 200 > 50 > pixels[1][0]
    assert stored["clear.png"].size == (100, 300)
    assert stored["small.png"].size == (90, 50)  # never enlarged
    assert stored["small-turned.jpg"].size == (40, 80) and not stored["small-turned.jpg"].getexif()
    assert min(stored["clear.png"].getpixel((50, 50))) > 250
