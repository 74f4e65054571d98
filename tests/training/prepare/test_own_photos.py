"""Photos of users: odd names, missing files, and notes about what was left out."""

from __future__ import annotations

import json
import os
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from captioner.errors import DataError
from captioner_training.data.manifest import Manifest
from captioner_training.data.reading import read_dataset
from tests.captioner.pictures import HEIC
from tests.launcher import Run
from tests.training.prepare.conftest import captions_of, prepare


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Eight small photos, no two alike, with their captions beside them."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for n in range(8):
        Image.new("RGB", (32, 24), (30 * n, 10, 200)).save(folder / f"{n}.jpg")
        (folder / f"{n}.txt").write_text(f"caption {n}")
    return folder


def test_one_unreadable_sidecar_hides_nothing(run_main: Run, photos: Path, tmp_path: Path) -> None:
    (photos / "0.txt").write_text("a café", "utf-16")
    (photos / "4.txt").write_text("one\u2028line\r\nanother", "utf-8", newline="")
    (photos / "1.txt").write_text("a café", "cp1252")
    (photos / "2.txt").write_bytes(b"\x81\x8d\0\1")
    (photos / "3.txt").write_text(" ")
    for name in ("film.mov", "film2.mov", "notes.pdf", ".DS_Store"):
        (photos / name).write_text("x")
    said = prepare(run_main, tmp_path / "to", "folder", photos, status=1)
    assert "unreadable captions: 1 (2.txt is not a text file: save it as UTF-8)" in said
    assert "empty caption: 1 (3.jpg)" in said
    assert "note: read as Windows-1252, not UTF-8: check accents: 1 (1.txt)" in said
    assert "note: unused files: 2 .mov, 1 .pdf\n" in said
    said = prepare(run_main, tmp_path / "to", "folder", photos, "--skip-bad", "--val", 0)
    assert "left out: unreadable captions: 1, empty caption: 1" in said
    assert "note: there is no split val, which training needs: draw a larger share" in said
    with pytest.raises(DataError, match="no split 'val'; it has train: draw a larger share"):
        read_dataset(tmp_path / "to", split="val")
    found = captions_of(tmp_path / "to")
    assert found["0.jpg"] == found["1.jpg"] == ("a café",) and len(found) == 6
    assert found["4.jpg"] == ("one line", "another")


@pytest.mark.parametrize(
    ("captions", "note"),
    [
        (["zzq"] * 19, None),
        (["zzq"] * 20, "100 % of the words; train with"),
        (["zzq zzq zzq a dog"] * 4, "60 % of the words; train with `captioner train new-language`"),
        (["zzq a"] * 10, None),
        (["狗" * 5] * 4, "new-language --data.tokenizer characters`"),
        (["狗" * 22, "狗" * 23], "captions longer than 22 words: 1 (1.jpg has 23)"),
    ],
)
def test_twenty_words_show_that_captions_are_in_another_language(
    run_main: Run, photos: Path, tmp_path: Path, captions: list[str], note: str | None
) -> None:
    table = tmp_path / "captions.csv"
    rows = [f"{n % 8}.jpg,{caption}" for n, caption in enumerate(captions)]
    table.write_text("\n".join(["image,caption", *rows]))
    said = prepare(run_main, tmp_path / "to", "csv", table, "--images", photos, "--val", 0.3)
    assert ("the bundled model does not know" in said) == (note is not None)
    assert note is None or note in said


def test_photos_of_a_telephone_are_taken(run_main: Run, photos: Path, tmp_path: Path) -> None:
    (photos / "IMG_0001.HEIC").write_bytes(HEIC)
    (photos / "IMG_0001.txt").write_text("from a telephone")
    said = prepare(run_main, tmp_path / "to", "folder", photos, "--val", 0)
    assert "not taken" not in said
    rows = Manifest.load(tmp_path / "to").rows(tmp_path / "to", "train")
    row = next(row for row in rows if row.file_name == "IMG_0001.HEIC")
    assert row.captions == ("from a telephone",) and (row.width, row.height) == (64, 48)


def test_names_that_are_not_utf_8_are_written_in_utf_8(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    """Names of Windows-1252, unpacked on Linux."""
    folder = photos.rename(os.fsdecode(os.fsencode(tmp_path) + b"/f\xeate"))
    for number, name in (6, b"caf\xe9"), (7, b"caf\xe8"):
        for suffix in ("jpg", "txt"):
            (folder / f"{number}.{suffix}").rename(folder / f"{os.fsdecode(name)}.{suffix}")
    prepare(run_main, tmp_path / "to", "folder", folder)
    captions = captions_of(tmp_path / "to")
    assert captions["caf\\udce9.jpg"] == ("caption 6",)
    assert captions["caf\\udce8.jpg"] == ("caption 7",)
    manifest = Manifest.load(tmp_path / "to")
    assert manifest.name == "f\\udceate" and manifest.source["path"].endswith("/f\\udceate")


def test_a_folder_that_leads_into_itself_is_read_once(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    (photos / "loop").symlink_to(".")
    (photos / "inner").mkdir()
    (photos / "inner" / "up").symlink_to(photos)
    prepare(run_main, tmp_path / "to", "folder", photos, "--val", 0)
    assert Manifest.load(tmp_path / "to").splits["train"].images == 8


def test_subfolders_are_searched_and_missing_images_say_where(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    inner = tmp_path / "set" / "images" / "deep"
    inner.parent.mkdir(parents=True)
    photos.rename(inner)
    (inner / "7.jpg").rename(inner / "7.JPG")
    table = tmp_path / "set" / "captions.csv"
    names = ["0.jpg", "elsewhere\\1.jpg", "7.jpg", "2", "images/deep/3.jpg"]
    table.write_text("image,caption\n" + "".join(f"{name},a\n" for name in names))
    said = prepare(run_main, tmp_path / "to", "csv", table, "--val", 0)
    assert "note: images found by another name: 2 (7.jpg is " in said
    assert [*captions_of(tmp_path / "to")] == names
    # Two names for one file, and a name that two files have: neither is guessed.
    Image.new("RGB", (32, 24), "red").save(tmp_path / "set" / "4.jpg")
    table.write_text("image,caption\nx/0.jpg,a\ny/0.jpg,b\nz/4.jpg,c\nnone.jpg,d\n5.jpg,e\n")
    said = prepare(run_main, tmp_path / "no", "csv", table, status=1)
    assert "missing image: 4 (x/0.jpg; y/0.jpg; z/4.jpg; none.jpg)" in said
    assert f"searched {tmp_path}/set and its subfolders; add places with --images" in said


def by_macos(text: str) -> str:
    """Write a name as macOS does: ü as two characters."""
    return unicodedata.normalize("NFD", text)


@pytest.fixture
def books(photos: Path) -> Path:
    """The same photos, called as macOS calls them; their captions have names by other systems."""
    for n in range(8):
        (photos / f"{n}.jpg").rename(photos / by_macos(f"Bück {n}.jpg"))
        (photos / f"{n}.txt").rename(photos / f"Bück {n}.txt")
    return photos


@pytest.mark.parametrize("kind", ["csv", "folder", "zip"])
@pytest.mark.parametrize("listed", [str, by_macos])
def test_names_that_look_the_same_are_the_same(
    run_main: Run, books: Path, tmp_path: Path, kind: str, listed: Callable[[str], str]
) -> None:
    names = [listed(f"Bück {n}.jpg") for n in range(8)]
    table = tmp_path / f"table.{'csv' if kind == 'csv' else 'jsonl'}"
    arguments: list[object] = ["jsonl", table, "--images", books]
    table.write_text("\n".join(json.dumps({"image": each, "caption": "a"}) for each in names))
    if kind == "csv":
        table.write_text("image,caption\n" + "".join(f"{each},a\n" for each in names))
        arguments[0] = "csv"
    elif kind == "folder":
        for n in range(8):
            (books / f"Bück {n}.txt").rename(books / listed(f"Bück {n}.txt"))
        arguments = [kind, books]
    elif kind == "zip":
        arguments[-1] = tmp_path / "photos.zip"
        with zipfile.ZipFile(arguments[-1], "w") as archive:
            for photo in books.glob("*.jpg"):
                archive.write(photo, photo.name)
    said = prepare(run_main, tmp_path / "to", *arguments)
    assert len(captions_of(tmp_path / "to")) == 8
    assert not [line for line in said.splitlines() if line.startswith("note: images")]


def test_a_photo_that_is_named_in_several_ways_keeps_its_captions(
    run_main: Run, books: Path, tmp_path: Path
) -> None:
    books.rename(tmp_path / "a")
    table = tmp_path / "captions.csv"
    names = ["Bück 1.jpg", "a/Bück 1.jpg", by_macos("Bück 1.jpg"), "./a/Bück 1.jpg", "Bück 1"]
    lines = [f"{name},caption {n}," for n, name in enumerate(names)]
    lines[1] += "test"  # so all of them are
    table.write_text("image,caption,split\n" + "\n".join([*lines, "Bück 2.jpg,other,train"]))
    prepare(run_main, tmp_path / "to", "csv", table, "--skip-bad")
    assert captions_of(tmp_path / "to") == {
        "Bück 1.jpg": tuple(f"caption {n}" for n in range(5)),
        "Bück 2.jpg": ("other",),
    }
    # What is nowhere called so, and what two names could mean, is not guessed.
    table.write_text("image,caption\nBück 1.jpg,a\nb/Bück 1.jpg,b\nc/Bück 2.jpg,c\nBuck 3.jpg,d")
    said = prepare(run_main, tmp_path / "no", "csv", table, "--skip-bad")
    assert "left out: missing image: 2\n" in said
    assert captions_of(tmp_path / "no") == {"Bück 1.jpg": ("a",), "c/Bück 2.jpg": ("c",)}


def test_capital_letters_in_names_of_texts_do_not_count(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    (photos / "1.jpg").rename(photos / "A.jpg")
    (photos / "1.txt").rename(photos / "a.TXT")
    prepare(run_main, tmp_path / "folder", "folder", photos)
    assert captions_of(tmp_path / "folder")["A.jpg"] == ("caption 1",)


def test_a_table_fetches_no_photo_from_elsewhere(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    for n in range(4):
        (photos / f"{n}.jpg").rename(private / f"secret {n}.jpg")
    (photos / "link.jpg").symlink_to(private / "secret 2.jpg")
    (photos / "album").symlink_to(private)
    names = [f"{private}/secret 0.jpg", "../private/secret 1.jpg", "link.jpg", "album/secret 3.jpg"]
    names += [f"{photos}/4.jpg", "../photos/5.jpg", "6.jpg"]
    table = tmp_path / "table.jsonl"
    table.write_text("\n".join(json.dumps({"image": one, "caption": "a"}) for one in names))
    command = ("jsonl", table, "--images", photos)
    said = prepare(run_main, tmp_path / "no", *command, status=1)
    assert f"missing image: 4 ({'; '.join(names[:4])})\n" in said
    prepare(run_main, tmp_path / "to", *command, "--skip-bad")
    assert set(captions_of(tmp_path / "to")) == set(names[4:])
    prepare(run_main, tmp_path / "all", *command, private)  # by its owner's word
    assert set(captions_of(tmp_path / "all")) == set(names)


def test_a_name_without_a_suffix_is_noted_and_drawn_into_the_same_split(
    run_main: Run, books: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    vals = []
    for suffix, book in ((".jpg", by_macos("Bück")), ("", "Bück")):
        table.write_text("image,caption\n" + "".join(f"{book} {n}{suffix},a\n" for n in range(8)))
        to = tmp_path / f"to{suffix}"
        said = prepare(run_main, to, "csv", table, "--images", books, "--val", 0.4)
        val = Manifest.load(to).rows(to, "val")
        vals.append([row.file_name.removesuffix(suffix)[-1] for row in val])
    assert vals[0] == vals[1]
    assert "note: images found by another name: 8 (Bück 0 is " in said
    (books / by_macos("Bück 0.jpg")).rename(books / "Bück 0.JPG")
    table.write_text("image,caption\nBück 0.jpg,a\n")
    said = prepare(run_main, tmp_path / "other", "csv", table, "--images", books, "--val", 0)
    assert "note: images found by another name: 1 (Bück 0.jpg is Bück 0.JPG)" in said


def test_wrong_paths_say_what_is_there(run_main: Run, photos: Path, tmp_path: Path) -> None:
    said = prepare(run_main, tmp_path / "to", "folder", tmp_path / "photo", status=1)
    assert said == f"captioner: there is no folder {tmp_path}/photo, did you mean {photos}?\n"
    said = prepare(run_main, tmp_path / "to", "csv", photos / "0.text", status=1)
    assert f"there is no file {photos}/0.text, did you mean {photos}/0.txt?" in said
    table = tmp_path / "captions.csv"
    table.write_text("image,caption\n0.jpg,a\n")
    said = prepare(
        run_main, tmp_path / "to", "csv", table, "--images", tmp_path / "phtoos", status=1
    )
    assert f"there is no file or folder {tmp_path}/phtoos, did you mean {photos}?" in said
    said = prepare(run_main, tmp_path / "to", "folder", table, status=1)
    assert "captions.csv is a file: name its folder" in said
    said = prepare(run_main, tmp_path / "to", "csv", photos, status=1)
    assert f"{photos} is a folder: name a file in it" in said
    assert not (tmp_path / "to").exists()


def test_thumbnails_and_deleted_photos_are_noted_and_not_prepared(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    for name in ("@eaDir", "#recycle", "$RECYCLE.BIN"):
        (photos / name).mkdir()
        Image.new("RGB", (32, 24), "red").save(photos / name / "0.jpg")
        (photos / name / "0.txt").write_text("a deleted photo")
    said = prepare(run_main, tmp_path / "to", "folder", photos)
    assert "skipped, photos in folders of thumbnails or deleted files: 3 (" in said
    assert sorted(captions_of(tmp_path / "to")) == [f"{n}.jpg" for n in range(8)]
