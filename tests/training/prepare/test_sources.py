"""Photos and captions as people have them: beside each other, in tables, and in archives."""

from __future__ import annotations

import os
import shutil
import struct
import tracemalloc
import unicodedata
import zipfile
from pathlib import Path

import pytest

from captioner import ConfigError, DataError
from captioner_training.data.manifest import Manifest
from captioner_training.data.reading import read_dataset
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.files import read_location
from tests.captioner.pictures import HEIC
from tests.launcher import Run
from tests.training.prepare.conftest import (
    captions_of,
    coco_json,
    names_of,
    prepare,
    read,
    write_table,
)
from tests.training.prepare.layouts import ROWS, photo, write_parquet, write_photo, write_tar


def by_macos(text: str) -> str:
    """Write a name as macOS does: ü as two characters."""
    return unicodedata.normalize("NFD", text)


def test_captions_beside_photos(photos: Path) -> None:
    """One per line, in several texts; names may differ in case and Unicode form."""
    (photos / "deep").mkdir()
    for n in (0, 1, 2):
        (photos / f"{n}.jpg").rename(photos / "deep" / f"{n}.jpg")
        (photos / f"{n}.txt").rename(photos / "deep" / f"{n}.txt")
    (photos / "deep" / "0.txt").write_text("one\n\n  another  line \r\nlast", newline="")
    (photos / "deep" / "0.caption").write_text("Tom &amp; Jerry&#39;s caf&#xE9;, R&D\x7fteam")
    (photos / "3.txt").rename(photos / "3.jpg.txt")
    (photos / "4.txt").rename(photos / "4.TXT")
    (photos / "5.jpg").rename(photos / by_macos("Bück.jpg"))
    (photos / "5.txt").rename(photos / "Bück.txt")
    (photos / "6.txt").write_text("a café", "utf-16")
    (photos / "7.txt").write_text("one\u2028line", "utf-8")
    for name in ("README.txt", "Credits.txt", ".DS_Store"):
        (photos / name).write_text("about")
    data = read("folder", photos)
    assert captions_of(data) == {
        "3.jpg": ("caption 3",), "4.jpg": ("caption 4",), by_macos("Bück.jpg"): ("caption 5",),
        "6.jpg": ("a café",), "7.jpg": ("one line",), "deep/1.jpg": ("caption 1",),
        "deep/0.jpg": ("one", "another line", "last", "Tom & Jerry's café, R&D team"),
        "deep/2.jpg": ("caption 2",),
    }  # fmt: skip
    assert data.name == "photos" and not data.problems and not data.problems.notes()


def test_one_unreadable_text_hides_nothing(photos: Path) -> None:
    (photos / "1.txt").write_text("a café", "cp1252")
    (photos / "2.txt").write_bytes(b"\x81\x8d\0\1")
    (photos / "3.txt").write_text(" ")
    (photos / "4.txt").rename(photos / "9.txt")
    data = read("folder", photos)
    assert {*captions_of(data)} == {f"{n}.jpg" for n in (0, 1, 5, 6, 7)}
    assert captions_of(data)["1.jpg"] == ("a café",)
    assert data.problems.counts == {
        "unreadable captions": 1, "caption of an unknown image": 1, "empty caption": 1,
        "image without caption": 1,
    }  # fmt: skip
    for name in ("2.txt is not a text file", "9.txt", "3.jpg", "4.jpg"):
        assert f"({name}" in data.problems.report()
    notes = "\n".join(data.problems.notes())
    assert "read as Windows-1252" in notes and "1 (1.txt)" in notes


def test_hidden_linked_and_deleted_photos(photos: Path) -> None:
    (photos / "loop").symlink_to(".")
    (photos / "inner").mkdir()
    (photos / "inner" / "up").symlink_to(photos)
    for name in ("@eaDir", "#recycle", "$RECYCLE.BIN", ".old"):
        write_photo(photos / name / "0.jpg")
        (photos / name / "0.txt").write_text("a deleted photo")
    data = read("folder", photos)
    assert names_of(data) == [f"{n}.jpg" for n in range(8)]
    assert "thumbnails or deleted files: 3 (" in "\n".join(data.problems.notes())
    write_parquet(photos, lambda split: photos / {"val": "#recycle"}.get(split, "kept") / "0.pq")
    captions = {caption for image in read("parquet", photos).images for caption in image.captions}
    assert captions == {caption for _, caption, split in ROWS if split != "val"}


def test_names_that_are_not_utf_8_are_written_in_utf_8(
    run_main: Run, photos: Path, tmp_path: Path
) -> None:
    """Names of Windows-1252, unpacked on Linux."""
    folder = photos.rename(os.fsdecode(os.fsencode(tmp_path) + b"/f\xeate"))
    for number, name in (6, b"caf\xe9"), (7, b"caf\xe8"):
        for suffix in ("jpg", "txt"):
            (folder / f"{number}.{suffix}").rename(folder / f"{os.fsdecode(name)}.{suffix}")
    (folder / "IMG_0001.HEIC").write_bytes(HEIC)
    (folder / "IMG_0001.txt").write_text("from a telephone")
    prepare(run_main, tmp_path / "to", "folder", folder, "--val", 0)
    manifest = Manifest.load(tmp_path / "to")
    rows = {row.file_name: row for row in manifest.rows(tmp_path / "to", "train")}
    assert rows["caf\\udce9.jpg"].captions == ("caption 6",)
    assert rows["caf\\udce8.jpg"].captions == ("caption 7",)
    assert manifest.name == "f\\udceate" and manifest.source["path"].endswith("/f\\udceate")
    assert (rows["IMG_0001.HEIC"].width, rows["IMG_0001.HEIC"].height) == (64, 48)


def test_a_folder_with_one_table_is_read_by_the_table(bare: Path, tmp_path: Path) -> None:
    expected = {f"{n}.jpg": (f"of {n}",) for n in range(8)}
    table = write_table(bare / "captions.txt", {f"{n}.jpg": f"of {n}" for n in range(8)})
    (packed := tmp_path / "packed").mkdir()
    shutil.copy(table, packed / "captions.csv")
    shutil.make_archive(str(packed / "photos"), "zip", bare)
    assert captions_of(read("folder", bare)) == captions_of(read("folder", packed)) == expected
    coco_json(packed / "captions.json", {7: "0.jpg"}, [(7, "x")])
    with pytest.raises(
        DataError, match=r"\(captions\.csv, captions\.json\).*`captioner prepare csv"
    ):
        read("folder", packed)
    (packed / "captions.csv").unlink()
    assert [image.id for image in read("folder", packed).images] == [7]


def test_metadata_tables_come_before_captions_beside_photos(photos: Path) -> None:
    write_table(photos / "metadata.csv", {"0.jpg": "of 0", "1.jpg": "of 1"}, "file_name,text")
    data = read("folder", photos)
    assert captions_of(data) == {"0.jpg": ("of 0",), "1.jpg": ("of 1",)}
    # `folder` has no options to name columns: the error names the command that has.
    table = write_table(photos / "metadata.csv", {"0.jpg": "1907"}, "file_name,year")
    with pytest.raises(ConfigError, match=f"year.* `captioner prepare csv {table} --images"):
        read("folder", photos)


def test_archives_of_photos_with_captions_beside_them(tmp_path: Path) -> None:
    """As img2dataset writes them: a caption is in two files, and failed downloads have no photo."""
    packed = tmp_path / "few.zip"
    texts = {
        "0.txt": "a dog", "0.json": '{"caption": "a dog", "split": "test"}',
        "1.caption": "a cat", "2.json": '{"caption": "a cow", "split": "dev"}',
        "3.json": '{"status": "failed", "caption": "a hen"}', "4.txt": "a pig",
        "5.txt": "a" * 2**20 + "b",
    }  # fmt: skip
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for n in (0, 1, 2, 5):
            archive.writestr(f"{n}.jpg", photo(f"{n}.jpg"))
            archive.writestr(f"__MACOSX/._{n}.jpg", b"of the Finder")
        for name, text in texts.items():
            archive.writestr(name, text)
    data = read("folder", packed, val=0)
    assert {(image.file_name, image.captions, image.split) for image in data.images} == {
        ("few/0.jpg", ("a dog",), "test"), ("few/1.jpg", ("a cat",), "train"),
        ("few/2.jpg", ("a cow",), "val"),
    }  # fmt: skip
    assert data.name == "few"
    assert data.problems.counts == {"caption of an unknown image": 1, "image without caption": 1}
    assert "(few.zip/4)" in data.problems.report()
    assert "(few/5.jpg)" in data.problems.report()  # 5.txt has more than a mebibyte


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "val"), ("a", "b")])
def test_shards_of_equal_names_and_keys_keep_their_photos(
    run_main: Run, tmp_path: Path, splits: tuple[str, str]
) -> None:
    """img2dataset names its shards, and the photos in them, by numbers."""
    photos: dict[str, bytes] = {}
    for split in splits:
        files = {}
        for key in range(6):
            photos[f"photo {key} in {split}"] = photo(f"{split}-{key}.jpg")
            files[f"{key}.jpg"] = photo(f"{split}-{key}.jpg")
            files[f"{key}.txt"] = f"photo {key} in {split}".encode()
        write_tar(tmp_path / "data" / split / "00000.tar", files)
    draw = ["--val", 0] if splits[0] == "a" else []
    for to, paths in (
        ("folder", [tmp_path / "data"]),
        ("files", sorted((tmp_path / "data").rglob("*.tar"))),
    ):
        prepare(run_main, tmp_path / to, "folder", *paths, *draw)
        found = [*Manifest.load(tmp_path / to).splits]
        assert found == (["train"] if draw else [*splits])
        images = [image for split in found for image in read_dataset(tmp_path / to, split=split)]
        assert images[0].name == f"{splits[0]}/00000/0.jpg"
        assert photos == {image.captions[0]: image.store.read(image.name) for image in images}


@pytest.mark.parametrize(
    ("claimed", "reason"),
    [(3_000_000_000, "3,000"), (1000, "Bad CRC"), (None, "File '1.jpg' is encrypted")],
)
def test_a_zip_file_with_a_wrong_size_is_not_unpacked(
    run_main: Run, tmp_path: Path, claimed: int | None, reason: str
) -> None:
    """Zeros compressed to a thousandth: not more than the limit or the stated size is read."""
    packed = tmp_path / "photos.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.jpg", bytes(50_000_000))
    content = bytearray(packed.read_bytes())
    assert content.count(struct.pack("<I", 50_000_000)) == 2
    content = content.replace(struct.pack("<I", 50_000_000), struct.pack("<I", claimed or 9))
    for header, flags in (b"PK\x03\x04", 6), (b"PK\x01\x02", 8):
        content[content.index(header) + flags] |= claimed is None
    packed.write_bytes(content)
    table = write_table(tmp_path / "t.csv", {"1.jpg": "zeros"})
    tracemalloc.start()
    said = prepare(run_main, tmp_path / "to", "csv", table, "--images", packed, status=1)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert f"corrupt image: 1 (1.jpg cannot be read: {reason}" in said


def test_tables_find_their_photos_in_folders_and_archives(bare: Path, tmp_path: Path) -> None:
    """By path or base name, in any folder; without a suffix; in any case."""
    photos = bare.rename(tmp_path / "photos [1]")  # a name, though it could be a pattern
    write_tar(tmp_path / "one.tar", {"a/8.jpg": photo("8.jpg"), "a/9.jpg": photo("9.jpg")})
    with zipfile.ZipFile(tmp_path / "two.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner/10.jpg", photo("10.jpg"))
    (photos / "1.jpg").rename(photos / "1.JPG")
    write_photo(photos / "deep" / "1.jpg")  # the other is nearer to the table's path
    names = ["0.jpg", "elsewhere\\2.jpg", "1.jpg", "3", "a/8.jpg", "9.jpg", "10.jpg"]
    table = write_table(tmp_path / "captions.csv", dict.fromkeys(names, "a"))
    data = read("csv", table, "--images", photos, tmp_path / "one.tar", tmp_path / "*.zip")
    assert names_of(data) == names and not data.problems
    assert "found by another name: 2 (1.jpg is 1.JPG; 3 is 3.jpg)" in "\n".join(
        data.problems.notes()
    )
    # Two names for one file, and a name that two files have: neither is guessed.
    write_photo(photos / "4.jpg")
    (photos / "deep" / "4.jpg").write_bytes(photo("other"))
    table = write_table(table, {"x/0.jpg": "a", "y/0.jpg": "b", "z/4.jpg": "c", "none.jpg": "d"})
    data = read("csv", table, "--images", photos)
    assert "missing image: 4 (x/0.jpg; y/0.jpg; z/4.jpg; none.jpg)" in data.problems.report()
    assert "--images" in data.problems.report()


def test_a_photo_that_is_named_in_several_ways_keeps_its_captions(
    bare: Path, tmp_path: Path
) -> None:
    for n in (1, 2):
        (bare / f"{n}.jpg").rename(bare / by_macos(f"Bück {n}.jpg"))
    bare.rename(tmp_path / "a")
    names = ["Bück 1.jpg", "a/Bück 1.jpg", by_macos("Bück 1.jpg"), "./a/Bück 1.jpg", "Bück 1"]
    rows = [f"{name},caption {n}," for n, name in enumerate(names)]
    rows[1] += "test"  # so all of them are
    rows.append("Bück 2.jpg,other,train")
    table = write_table(tmp_path / "t.csv", rows, "image,caption,split")
    assert captions_of(read("csv", table)) == {
        "Bück 1.jpg": tuple(f"caption {n}" for n in range(5)), "Bück 2.jpg": ("other",),
    }  # fmt: skip
    # A name in another folder is a guess, and is dropped if another name has the photo.
    rows = {"Bück 1.jpg": "a", "b/Bück 1.jpg": "b", "c/Bück 2.jpg": "c", "Buck 3.jpg": "d"}
    data = read("csv", write_table(table, rows))
    assert captions_of(data) == {"Bück 1.jpg": ("a",), "c/Bück 2.jpg": ("c",)}
    assert data.problems.counts == {"missing image": 2}


def test_a_table_fetches_no_photo_from_elsewhere(bare: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    for n in range(4):
        (bare / f"{n}.jpg").rename(private / f"secret {n}.jpg")
    (bare / "link.jpg").symlink_to(private / "secret 2.jpg")
    (bare / "album").symlink_to(private)
    names = [f"{private}/secret 0.jpg", "../private/secret 1.jpg", "link.jpg", "album/secret 3.jpg"]
    names += [f"{bare}/4.jpg", "../photos/5.jpg", "6.jpg"]
    table = write_table(tmp_path / "table.csv", dict.fromkeys(names, "a"))
    data = read("csv", table, "--images", bare)
    assert f"missing image: 4 ({'; '.join(names[:4])})\n" in data.problems.report()
    assert names_of(data) == names[4:]
    assert names_of(read("csv", table, "--images", bare, private)) == names  # explicitly named


def test_parquet_holds_names_bytes_or_both(bare: Path, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    def write(name: str, **columns: list[object]) -> Path:
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
        return path

    table = write(
        "t", file_name=["0.jpg", "1.jpg", "3.jpg", None], pixels=[b"\0" * 100] * 4,
        text=[["one", "two"], ["three"], ["four"], ["lost"]],
        split=["train", "validation", None, "train"],
    )  # fmt: skip
    data = read("parquet", table, "--images", bare, val=0)
    assert [(image.file_name, image.captions, image.split) for image in data.images] == [
        ("0.jpg", ("one", "two"), "train"), ("1.jpg", ("three",), "val"),
        ("3.jpg", ("four",), "train"),
    ]  # fmt: skip
    assert "incomplete row: 1 (row 4 names no image)" in data.problems.report()
    contents = [photo(f"{n}.jpg") for n in range(3)]
    cells: list[tuple[str, list[object], list[str]]] = [
        ("paths", [{"bytes": None, "path": f"{n}.jpg"} for n in range(3)],
         ["0.jpg", "1.jpg", "2.jpg"]),
        ("bytes", [*contents], ["bytes/0.jpg", "bytes/1.jpg", "bytes/2.jpg"]),
        # As often in practice: one photo is called as another is.
        ("equal", [{"bytes": content, "path": "photo.jpg"} for content in contents],
         ["equal/photo.jpg", "equal/1/photo.jpg", "equal/2/photo.jpg"]),
    ]  # fmt: skip
    for kind, images, names in cells:
        table = write(kind, image=images, légende=["one", "two", "three"])
        columns = Columns(captions=("légende",))
        table = table.rename(tmp_path / f"{kind}.pq")
        data = read("parquet", table, "--images", bare, columns=columns, val=0)
        assert captions_of(data) == dict(zip(names, [("one",), ("two",), ("three",)], strict=True))
        assert [read_location(image.location) for image in data.images] == contents
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no table PAR1")
    for name, reason in ("bad.parquet", "cannot be read as Parquet"), ("none.parquet", "no file"):
        with pytest.raises(DataError, match=reason):
            read("parquet", tmp_path / name)


def test_coco_json(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = coco_json(tmp_path / "one.json", {7: "0.jpg", 8: "1.jpg"}, [(8, "x"), (7, "y")])
    two = coco_json(tmp_path / "two.json", {7: "3.jpg"}, [(7, "z"), (7, "zz")])
    two.write_text(two.read_text().replace('"id": 7,', '"id": 7, "split": "test",'))

    def found(*arguments: object) -> list[tuple[object, ...]]:
        images = read("coco-json", *arguments, "--images", bare).images
        return [(image.id, image.file_name, image.captions, image.split) for image in images]

    assert found(f"train={one}", f"val={two}") == [
        (7, "0.jpg", ("y",), "train"), (8, "1.jpg", ("x",), "train"),
        (7, "3.jpg", ("z", "zz"), "val"),  # its own 7: another file, another image
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    shutil.copy(two, "fold=1.json")  # a name, though it could be a split
    assert found("fold=1.json") == [(7, "3.jpg", ("z", "zz"), "test")]
    table = write_table(tmp_path / "t.csv", ["0.jpg,one,../up"], "image,caption,split")
    with pytest.raises(DataError, match=r"0\.jpg is in split '\.\./up'"):
        read("csv", table, "--images", bare)
