"""Inputs of a batch, and the photos that they contain."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from captioner import Captioner, DataError
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.inputs.photos import LostPhoto
from captioner_serving.batch.inputs.sources import Inputs, skipped_entries
from tests.serving.batch.conftest import Photos


def names(*sources: object, **options: Any) -> list[str]:
    inputs = Inputs(sources=tuple(map(str, sources)), **options)
    return [photo.name for photo in inputs.photos()]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nested folders with photos and other files."""
    for name in (
        "b.jpg", "a.PNG", "notes.txt", ".hidden.jpg", "sub/c.jpeg", "sub/deep/d.webp",
        ".git/e.jpg", "z.tiff", "photo[1].jpg",
    ):  # fmt: skip
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "tree" / "sub" / "up").symlink_to(tmp_path / "tree")
    monkeypatch.chdir(tmp_path / "tree")
    return tmp_path / "tree"


def test_folders(tree: Path) -> None:
    inside = ["a.PNG", "b.jpg", "photo[1].jpg", "z.tiff", "sub/c.jpeg", "sub/deep/d.webp"]
    assert names(tree) == [f"{tree}/{name}" for name in inside]
    assert names(".") == [f"./{name}" for name in inside]
    assert names("./sub/") == ["./sub/c.jpeg", "./sub/deep/d.webp"]
    assert names("sub/up") == [f"sub/up/{name}" for name in inside]  # named, so followed
    (tree / "more").mkdir()
    suffixes = ("jpe", "jfif", "avif", "HEIC", "heif", "hif", "bmp", "gif", "tif")
    more = {f"more/p.{suffix}" for suffix in suffixes}
    for name in more:
        Path(name).touch()
    assert set(names("more")) == more


@pytest.mark.parametrize("source", [".", "**/*.jpg", "sub/*", "sub"])
def test_folders_behind_links_are_counted_and_named(tree: Path, source: str) -> None:
    (tree / "elsewhere").mkdir()
    (tree / "elsewhere" / "e.jpg").write_bytes(b"x")
    (tree / "sub" / "other").symlink_to("../elsewhere")
    skipped: Counter[str] = Counter()
    for _ in range(2):
        photos = list(Inputs(sources=(source,)).photos(skipped))
    assert photos and not any("other" in photo.name or "up" in photo.name for photo in photos)
    links = {kind: count for kind, count in skipped.items() if "link" in kind}
    assert links == {"link to a folder (sub/other)": 1, "link to a folder (sub/up)": 1}


def test_globs(tree: Path) -> None:
    assert names("*.jpg") == ["b.jpg", "photo[1].jpg"]
    assert names("**/*.jp*g") == ["b.jpg", "photo[1].jpg", "sub/c.jpeg"]
    assert names("s*/*") == ["sub/c.jpeg", "sub/deep/d.webp"]
    assert names("su?") == ["sub/c.jpeg", "sub/deep/d.webp"]
    assert names(f"{tree}/**/d.webp") == [f"{tree}/sub/deep/d.webp"]
    assert names("photo[1].jpg") == ["photo[1].jpg"]  # a name before a pattern
    assert names("?.jpg", "notes.txt") == ["b.jpg", "notes.txt"]  # named, so tried


def test_lists(tree: Path) -> None:
    (tree / "list").write_bytes(
        b"\xef\xbb\xbfb.jpg\r\n\n  odd name \rhttps://x.org/y.jpg\ncaf\xe9.jpg"
    )
    listed = ["b.jpg", "  odd name ", "https://x.org/y.jpg", os.fsdecode(b"caf\xe9.jpg")]
    assert names(lists=("list",)) == listed
    (tree / "'own'.jpg'").touch()  # a name with quotation marks of its own
    (tree / "list").write_text('"b.jpg"\n\'a.PNG\'\n"C:\\x.jpg"\n\'own\'.jpg\'\n"\n"z.tiff\n')
    plain = ["b.jpg", "a.PNG", "C:\\x.jpg", "'own'.jpg'", '"', '"z.tiff']
    assert names(lists=("list",)) == plain
    long = [f"{number:05} {'x' * (number % 90)}.jpg" for number in range(4000)]  # 200 kB
    (tree / "list").write_text("\n".join(long))
    assert names(lists=("list",)) == long


WINDOWS = ["café/p1.jpg", "größe 2.jpg", "a, b;c|d.jpg"]  # all in Windows-1252


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lists_in_the_encodings_of_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, end: str
) -> None:
    (tmp_path / "root" / "café").mkdir(parents=True)
    for name in WINDOWS:
        (tmp_path / "root" / name).write_bytes(b"x")
    (tmp_path / "list.txt").write_bytes((end.join(WINDOWS) + end).encode(encoding))
    assert names(lists=(f"{tmp_path}/list.txt",), root=f"{tmp_path}/root") == WINDOWS
    monkeypatch.chdir(tmp_path / "root")
    assert names(lists=(f"{tmp_path}/list.txt",)) == WINDOWS


def test_tables(tree: Path) -> None:
    (tree / "t.csv").write_text('id,"file name"\n1,"a, b.jpg"\n2,\n3,"new\nline.jpg"\n')
    wanted = ["a, b.jpg", "t.csv#2", "new\nline.jpg"]
    assert names("t.csv", column="file name") == wanted
    lost = list(Inputs(sources=("t.csv",), column="file name").photos())[1]
    assert isinstance(lost, LostPhoto) and "row 2 has no file name" in lost.reason
    (tree / "=1.jpg").touch()  # a table of ours has apostrophes before formulas
    (tree / "o.csv").write_text("image,score\n'=1.jpg,-1\n'=2.jpg,-1\n")
    assert names("o.csv", column="image") == ["=1.jpg", "'=2.jpg"]
    (tree / "T.TSV").write_text("path\tx\nq.jpg\t1\n")
    # U+2028 ends no line of JSON Lines.
    lines = '{"path": "\\udce9.jpg"}\n\n{"path": null}\n{"path": "a\u2028b.jpg"}\n'
    (tree / "t.jsonl").write_text(lines, encoding="utf-8")
    wanted = ["q.jpg", "\udce9.jpg", "t.jsonl#2", "a\u2028b.jpg"]
    assert names("T.TSV", "t.jsonl", column="path") == wanted
    for bad, reason in (('{"path": ', "JSON"), ('["b.jpg"]', "a JSON object")):
        (tree / "bad.jsonl").write_text(f'{{"path": "a.jpg"}}\n{bad}')
        with pytest.raises(DataError, match=rf"bad\.jsonl: line 2 is not {reason}"):
            names("bad.jsonl", column="path")


def test_what_is_no_list_or_table_is_a_sentence(tmp_path: Path) -> None:
    film, deep, table = tmp_path / "film.mp4", tmp_path / "deep.jsonl", tmp_path / "t.parquet"
    film.write_bytes(b"x" * (3 << 20))
    deep.write_text("[" * 100_000)
    table.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(DataError, match=r"1,048,576 bytes or more: use a list of photos"):
        list(Inputs(lists=(str(film),)).photos())
    with pytest.raises(DataError, match="line 1 is not JSON"):
        names(deep, column="path")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        names(table, column="path")


def make_tar(path: Path, folder: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        for photo in sorted(folder.iterdir()):
            tar.add(photo, f"./{photo.stem}/{photo.name}")
            for name in (f"{photo.stem}.json", f"._{photo.name}"):
                tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return path


def test_archives_are_read_in_place(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    folder = photos(3)
    wanted = [record["caption"] for record in caption_batch(folder, captioner=tiny)]
    archives = [tmp_path / "photos.tar", tmp_path / "photos.zip"]
    make_tar(archives[0], folder)
    with zipfile.ZipFile(archives[1], "w", zipfile.ZIP_DEFLATED) as file:
        for photo in sorted(folder.iterdir()):
            file.write(photo, f"{photo.stem}/{photo.name}")
        file.writestr("__MACOSX/p000.jpg", b"")
    before, output = set(tmp_path.iterdir()), tmp_path / "c.jsonl"
    records = list(caption_batch(archives, output=output, captioner=tiny))
    assert [record["caption"] for record in records] == 2 * wanted
    tops = (f"{archives[0]}/.", archives[1])
    assert [record["image"] for record in records] == [
        f"{top}/p{n:03}/p{n:03}.jpg" for top in tops for n in range(3)
    ]
    assert not list(caption_batch(archives, output=output, captioner=tiny))
    assert set(tmp_path.iterdir()) - before == {output, Path(f"{output}.run.json")}


def test_a_list_that_ends_the_run_keeps_what_was_done(
    tiny: Captioner, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(4), tmp_path / "c.jsonl"
    listed = tmp_path / "list"
    listed.write_text("\n" + "x" * (2 << 20))
    inputs = Inputs(sources=(str(folder),), lists=(str(listed),))
    config = BatchConfig(batch_size=3)  # the last batch has one photo
    with pytest.raises(DataError, match="use a list of photos"):
        list(caption_batch(inputs, output=output, captioner=tiny, config=config))
    images = [json.loads(line)["image"] for line in output.read_text().splitlines()]
    assert images == sorted(map(str, folder.iterdir()))


@pytest.mark.parametrize("name", ["-", "HTTPS://a.org/a.jpg", "s3://b/c", "pipe"])
def test_what_can_be_read_only_once_is_not_counted(tree: Path, name: str) -> None:
    """A second reader would take names from a pipe."""
    os.mkfifo("pipe")
    assert not Inputs(sources=("b.jpg", name)).countable
    assert not Inputs(lists=(name,)).countable
    assert Inputs(sources=("a.tar", ".", "notes.txt"), lists=("notes.txt",)).countable


def test_one_missing_photo_of_several_is_only_an_error_of_its_own(tree: Path) -> None:
    Inputs(sources=("b.jpg", "none.jpg")).check()
    Inputs(sources=("none.jpg",), lists=("notes.txt",)).check()
    with pytest.raises(DataError, match=r"there is no file none\.jpg"):
        Inputs(sources=("none.jpg", "none.tar")).check()


def test_thumbnails_and_deleted_files_are_counted_not_captioned(tmp_path: Path) -> None:
    skipped = ("@eaDir/p.jpg/THUMB_M.jpg", "@eaDir/p.jpg/THUMB_XL.jpg", "#recycle/d.jpg")
    skipped = (*skipped, "$RECYCLE.BIN/$R1.jpg", ".Trash-1000/files/e.jpg")
    for name in ("p.jpg", "b/p.jpg", *skipped):
        path = tmp_path / "nas" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    with tarfile.open(tmp_path / "nas.tar", "w") as tar:
        tar.add(tmp_path / "nas", "nas")
    for source in ("nas", "nas/*", "nas/**/*.jpg", "nas.tar"):
        skipped_counts: Counter[str] = Counter()
        photos = list(Inputs(sources=(f"{tmp_path}/{source}",)).photos(skipped_counts))
        assert sorted(Path(photo.name).parent.name for photo in photos) == ["b", "nas"]
        said = skipped_entries(skipped_counts)
        assert "skipped: 2 in @eaDir" in said, source
        assert "1 in #recycle, 1 in $RECYCLE.BIN" in said
    inside = f"{tmp_path}/nas/@eaDir"  # named by the user
    assert len(names(inside)) == 2
    assert names(lists=(_list(tmp_path, f"{inside}/p.jpg/THUMB_M.jpg"),))


def _list(folder: Path, *lines: str) -> str:
    (folder / "names.txt").write_text("\n".join(lines))
    return str(folder / "names.txt")


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("*.jpeg", ["a.PNG", "b.jpg", "photo[1].jpg", "z.tiff", "sub/deep/d.webp"]),
        ("deep", ["a.PNG", "b.jpg", "photo[1].jpg", "z.tiff", "sub/c.jpeg"]),
        ("./sub/*", ["a.PNG", "b.jpg", "photo[1].jpg", "z.tiff"]),
    ],
)
def test_excluded_photos_are_counted(tree: Path, pattern: str, left: list[str]) -> None:
    skipped: Counter[str] = Counter()
    photos = Inputs(sources=(".",), exclude=(pattern,)).photos(skipped)
    assert [os.path.relpath(photo.name) for photo in photos] == left
    assert skipped[f"by --exclude {pattern}"] == 6 - len(left)
    listed = _list(tree, "sub/c.jpeg", "b.jpg")
    assert names(lists=(listed,), exclude=("sub",)) == ["b.jpg"]


@pytest.mark.parametrize("pattern", ["drafts", "album/drafts/*", "c.jpg"])
def test_folders_of_windows_are_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    listed = _list(tmp_path, r"album\drafts\c.jpg", r"album\drafts.jpg")
    monkeypatch.setattr(os, "sep", "\\")
    assert names(lists=(listed,), exclude=(pattern,)) == [r"album\drafts.jpg"]
