"""Photos of a stranger's own: what is not taken is said, what is not found is looked for."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from captioner.paths import there_is_no
from captioner_training.prepare.manifest import Manifest
from tests.captioner.test_readers import HEIC

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Eight small photos, no two alike, with their captions beside them."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for n in range(8):
        Image.new("RGB", (32, 24), (30 * n, 10, 200)).save(folder / f"{n}.jpg")
        (folder / f"{n}.txt").write_text(f"caption {n}")
    return folder


def prepare(run: Run, to: Path, *arguments: object, status: int = 0) -> str:
    result = run("prepare", *arguments, "--to", to, "--workers", 1)
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def test_one_unreadable_sidecar_hides_nothing(
    run_captioner: Run, photos: Path, tmp_path: Path
) -> None:
    (photos / "0.txt").write_text("a café", "utf-16")
    (photos / "1.txt").write_text("a café", "cp1252")
    (photos / "2.txt").write_bytes(b"\x81\x8d\0\1")
    (photos / "3.txt").write_text(" ")
    for name in ("film.mov", "film2.mov", "notes.pdf", ".DS_Store"):
        (photos / name).write_text("x")
    said = prepare(run_captioner, tmp_path / "to", "folder", photos, status=1)
    assert "unreadable captions: 1 (2.txt is not a text in UTF-8: save it again as UTF-8)" in said
    assert "empty caption: 1 (3.jpg)" in said
    assert "note: read as Windows-1252" in said and ": 1 (1.txt)" in said
    assert "note: files that were not taken: 2 .mov, 1 .pdf\n" in said
    said = prepare(run_captioner, tmp_path / "to", "folder", photos, "--skip-bad", "--val", 0)
    assert "left out: unreadable captions: 1, empty caption: 1" in said
    assert "note: no image is in val" in said
    rows = Manifest.load(tmp_path / "to").rows(tmp_path / "to", "train")
    found = {row.file_name: row.captions for row in rows}
    assert found["0.jpg"] == found["1.jpg"] == ("a café",) and len(found) == 6


def test_photos_of_a_telephone_are_taken(run_captioner: Run, photos: Path, tmp_path: Path) -> None:
    (photos / "IMG_0001.HEIC").write_bytes(HEIC)
    (photos / "IMG_0001.txt").write_text("from a telephone")
    said = prepare(run_captioner, tmp_path / "to", "folder", photos, "--val", 0)
    assert "not taken" not in said
    rows = Manifest.load(tmp_path / "to").rows(tmp_path / "to", "train")
    row = next(row for row in rows if row.file_name == "IMG_0001.HEIC")
    assert row.captions == ("from a telephone",) and (row.width, row.height) == (64, 48)


def test_a_folder_that_leads_into_itself_is_read_once(
    run_captioner: Run, photos: Path, tmp_path: Path
) -> None:
    (photos / "loop").symlink_to(".")
    (photos / "inner").mkdir()
    (photos / "inner" / "up").symlink_to(photos)
    prepare(run_captioner, tmp_path / "to", "folder", photos, "--val", 0)
    assert Manifest.load(tmp_path / "to").splits["train"].images == 8


def test_eight_photos_have_a_val_split(run_captioner: Run, photos: Path, tmp_path: Path) -> None:
    prepare(run_captioner, tmp_path / "to", "folder", photos)
    splits = Manifest.load(tmp_path / "to").splits
    assert splits["val"].images >= 1 and splits["train"].images >= 4


def test_subfolders_are_searched_and_missing_images_say_where(
    run_captioner: Run, photos: Path, tmp_path: Path
) -> None:
    inner = tmp_path / "set" / "images" / "deep"
    inner.parent.mkdir(parents=True)
    photos.rename(inner)
    (inner / "7.jpg").rename(inner / "7.JPG")
    table = tmp_path / "set" / "captions.csv"
    names = ["0.jpg", "elsewhere\\1.jpg", "7.jpg", "2", "images/deep/3.jpg"]
    table.write_text("image,caption\n" + "".join(f"{name},a\n" for name in names))
    said = prepare(run_captioner, tmp_path / "to", "csv", table, "--val", 0)
    assert "note: images found in a subfolder, by file name: 4 (0.jpg at " in said
    rows = Manifest.load(tmp_path / "to").rows(tmp_path / "to", "train")
    assert [row.file_name for row in rows] == names
    # Two names for one file, and a name that two files have: neither is guessed.
    Image.new("RGB", (32, 24), "red").save(tmp_path / "set" / "4.jpg")
    table.write_text("image,caption\nx/0.jpg,a\ny/0.jpg,b\nz/4.jpg,c\nnone.jpg,d\n5.jpg,e\n")
    said = prepare(run_captioner, tmp_path / "no", "csv", table, status=1)
    twice = f"which one of {tmp_path}/set/4.jpg, {inner}/4.jpg?"
    assert f"missing image: 4 (x/0.jpg; y/0.jpg; z/4.jpg ({twice}); none.jpg)" in said
    assert f"looked in {tmp_path}/set and its subfolders; --images PLACE names other places" in said


def test_archives_are_searched_by_name_and_nothing_is_guessed(
    run_captioner: Run, photos: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.write(photos / "0.jpg", "inner/b/0.jpg")
        archive.write(photos / "1.jpg", "inner/1.jpg")
    table = tmp_path / "captions.csv"
    places = ("--images", tmp_path / "photos.zip", "--val", 0)
    table.write_text("image,caption\ninner/b/0.jpg,a red square\na/1.jpg,a\n")
    prepare(run_captioner, tmp_path / "to", "csv", table, *places)
    rows = Manifest.load(tmp_path / "to").rows(tmp_path / "to", "train")
    assert [row.file_name for row in rows] == ["inner/b/0.jpg", "a/1.jpg"]
    # A file that another row names by its path, or that two names could mean, is not taken.
    table.write_text("image,caption\ninner/b/0.jpg,a\na/0.jpg,b\nx/1.jpg,c\ny/1.jpg,d\n")
    said = prepare(run_captioner, tmp_path / "no", "csv", table, *places, status=1)
    assert "missing image: 3 (a/0.jpg; x/1.jpg; y/1.jpg)" in said


def test_wrong_paths_say_what_is_there(run_captioner: Run, photos: Path, tmp_path: Path) -> None:
    said = prepare(run_captioner, tmp_path / "to", "folder", tmp_path / "photo", status=1)
    assert said == f"captioner: there is no folder {tmp_path}/photo, did you mean {photos}?\n"
    said = prepare(run_captioner, tmp_path / "to", "csv", photos / "0.text", status=1)
    assert f"there is no file {photos}/0.text, did you mean {photos}/0.txt?" in said
    table = tmp_path / "captions.csv"
    table.write_text("image,caption\n0.jpg,a\n")
    said = prepare(
        run_captioner, tmp_path / "to", "csv", table, "--images", tmp_path / "phtoos", status=1
    )
    assert f"there is no file or folder {tmp_path}/phtoos, did you mean {photos}?" in said
    said = prepare(run_captioner, tmp_path / "to", "folder", table, status=1)
    assert "captions.csv is a file: name the folder that it is in" in said
    said = prepare(run_captioner, tmp_path / "to", "csv", photos, status=1)
    assert f"{photos} is a folder: name the file in it" in said
    assert not (tmp_path / "to").exists()


def test_there_is_no(tmp_path: Path) -> None:
    (tmp_path / "Photos" / "summer").mkdir(parents=True)
    assert there_is_no("folder", tmp_path / "photo" / "summer") == (
        f"there is no folder {tmp_path}/photo/summer: {tmp_path}/photo does not exist, did you "
        f"mean {tmp_path}/Photos?"
    )
    assert there_is_no("folder", tmp_path / "zzz") == f"there is no folder {tmp_path}/zzz"
