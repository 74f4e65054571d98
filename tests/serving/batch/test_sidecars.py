"""Sidecars: their names, and how existing files are treated.

Most tests use `convert`, which writes sidecars as `batch` does, and needs no model.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from captioner import Captioner
from captioner_serving.batch import BatchConfig, caption_batch
from tests.launcher import Run
from tests.serving.batch.conftest import (
    Photos,
    Records,
    exiftool,
    read_lines,
    record_of,
    write_lines,
)
from tests.serving.batch.test_xmp import LIGHTROOM

Write = Callable[..., list[str]]
Caption = Callable[..., Records]


@pytest.fixture
def write(run_main: Run, tmp_path: Path) -> Write:
    """Write a sidecar for each photo, whose caption is "photo N"; return the errors."""

    def run(*photos: Path, kind: str = "txt", existing: str = "skip") -> list[str]:
        records = [record_of(photo, f"photo {number}") for number, photo in enumerate(photos)]
        write_lines(tmp_path / "r.jsonl", *records)
        options = ("--sidecar", kind, "--existing", existing)
        result = run_main("convert", tmp_path / "r.jsonl", *options)
        *errors, _ = result.stderr.splitlines()
        assert result.returncode == bool(errors)
        return [error.removeprefix("captioner: ") for error in errors]

    return run


@pytest.fixture
def caption(tiny: Captioner) -> Caption:
    """Caption photos with a sidecar each."""

    def run(sources: Any, sidecar: Any, output: Path | None = None, **more: Any) -> Records:
        config = BatchConfig(sidecar=sidecar, **more)
        return list(caption_batch(sources, output=output, config=config, captioner=tiny))

    return run


@pytest.mark.parametrize(
    ("old", "existing", "wanted"),
    [
        ("mine\n", "skip", "mine\n"),
        ("mine\n", "append", "mine photo 0\n"),
        ("mine\n", "overwrite", "photo 0\n"),
        ("\ufeffmine", "append", "mine photo 0\n"),
        ("photo 01", "append", "photo 01 photo 0\n"),
        ("my photo 0", "append", "my photo 0\n"),
        ("photo 0", "append", "photo 0\n"),
        ("a telephoto 0", "append", "a telephoto 0 photo 0\n"),
        ("one\ntwo\n", "append", "one\ntwo\nphoto 0\n"),
        *((blank, "skip", "photo 0\n") for blank in ("", "\n", " \t\r\n", "\ufeff\n")),
    ],
)
def test_a_text_is_kept_extended_or_replaced(
    write: Write, photos: Photos, old: str, existing: str, wanted: str
) -> None:
    """Writing twice changes nothing, and leaves no temporary file."""
    folder = photos(1)
    sidecar = folder / "p000.txt"
    sidecar.write_text(old)
    for _ in range(2):
        assert write(folder / "p000.jpg", existing=existing) == []
        assert sidecar.read_text() == wanted
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_a_text_in_an_encoding_of_windows_is_extended(
    write: Write, photos: Photos, encoding: str
) -> None:
    """As `captioner prepare` reads it; what is no text stays."""
    folder = photos(2)
    (folder / "p000.txt").write_bytes("größe\n".encode(encoding))
    (folder / "p001.txt").write_bytes(binary := b"\x81\0\xff")
    said = f"{folder}/p001.txt is not text; it was not changed"
    assert write(*sorted(folder.glob("*.jpg")), existing="append") == [said]
    assert (folder / "p000.txt").read_text(encoding="utf-8") == "größe photo 0\n"
    assert (folder / "p001.txt").read_bytes() == binary


def test_a_description_in_a_tiff_is_kept(write: Write, tmp_path: Path) -> None:
    photo, sidecar = tmp_path / "a.tif", tmp_path / "a.xmp"
    Image.new("RGB", (60, 40)).save(photo, description="Oma")
    assert write(photo, kind="xmp") == []
    assert "AltText" in sidecar.read_text() and "dc:description" not in sidecar.read_text()


@pytest.mark.needs("exiftool")
def test_a_description_in_the_photo_is_kept(
    caption: Caption, photos: Photos, run_batch: Run, tmp_path: Path
) -> None:
    """In XMP, IPTC or EXIF, as exiftool writes it; but not the names of cameras."""
    folder = photos(6)
    for name, tag in {
        "p000": "-XMP-dc:Description=Oma",
        "p001": "-IPTC:Caption-Abstract=Oma",
        "p002": "-EXIF:ImageDescription=Oma",
        "p003": "-EXIF:ImageDescription=OLYMPUS DIGITAL CAMERA",
        "p004": "-XMP-iptcCore:AltTextAccessibility=Oma",
    }.items():
        exiftool("-q", "-overwrite_original", tag, folder / f"{name}.jpg")
    described = {"p000", "p001", "p002"}
    result = run_batch(folder, "--output", tmp_path / "c.jsonl", "--sidecar", "xmp")
    assert "3 photos with their own description" in result.stderr
    for sidecar in folder.glob("*.xmp"):
        text = sidecar.read_text()
        assert ("dc:description" not in text) == (sidecar.stem in described)
        assert ("AltText" not in text) == (sidecar.stem == "p004")
        sidecar.unlink()
    records = caption(folder, "xmp", existing="append")
    for record in records[:3]:
        text = f"Oma {record['caption'].capitalize()}."
        assert f">{text}</" in Path(record["image"]).with_suffix(".xmp").read_text()
    assert all("Oma" not in (folder / f"{name}.xmp").read_text() for name in ("p003", "p005"))


def test_json_sidecars_are_records_also_in_place_of_a_blank_one(
    caption: Caption, photos: Photos
) -> None:
    folder = photos(2)
    (folder / "p001.json").write_text("\n")
    for record in caption(folder, "json"):
        assert json.loads(Path(record["image"]).with_suffix(".json").read_text()) == record


def test_a_damaged_xmp_sidecar_stays_and_darktables_is_used(
    caption: Caption, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    (folder / "p001.xmp").write_text("<x:xmpmeta>not closed")
    (folder / "p002.jpg.xmp").write_text(LIGHTROOM)
    _, damaged, _ = records = caption(folder, "xmp", output)
    assert ["error" in record for record in records] == [False, True, False]
    assert damaged["error"]["type"] == "output-error"
    assert "p001.xmp is not XML" in damaged["error"]["detail"]
    assert (folder / "p001.xmp").read_text() == "<x:xmpmeta>not closed"
    assert "AltTextAccessibility" in (folder / "p002.jpg.xmp").read_text()
    assert not (folder / "p002.xmp").exists()
    (folder / "p001.xmp").unlink()
    (again,) = caption(folder, "xmp", output, retry_errors=True)
    assert "error" not in again


def test_photos_that_share_a_stem_have_sidecars_of_their_own(write: Write, photos: Photos) -> None:
    """Two names of one file simulate a file system that ignores case."""
    folder, another = photos(4), photos(1, name="another")
    Image.open(folder / "p001.jpg").save(folder / "p000.PNG")
    os.link(folder / "p002.jpg", folder / "p002.JPG")
    (folder / "p003.JPG").symlink_to("nowhere")
    names = ("p000.jpg", "p000.PNG", "p001.jpg", "p002.jpg", "p003.jpg")
    assert write(*another.iterdir(), *(folder / name for name in names)) == []
    sidecars = sorted(path.name for path in folder.glob("*.txt"))
    assert sidecars == ["p000.PNG.txt", "p000.jpg.txt", "p001.txt", "p002.txt", "p003.jpg.txt"]


def test_a_sidecar_that_fails_costs_no_caption_and_a_private_one_stays_private(
    caption: Caption, photos: Photos, tmp_path: Path, run_batch: Run
) -> None:
    folder, output = photos(2), tmp_path / "c.jsonl"
    failing, private = folder / "p000.txt", folder / "p001.txt"
    failing.mkdir()
    private.write_text("mine")
    private.chmod(0o600)
    first, second = caption(folder, "txt", output, existing="append")
    assert "error" in first and first["caption"] and "error" not in second
    assert private.stat().st_mode & 0o777 == 0o600
    result = run_batch(folder, "--output", "-", "--sidecar", "txt", "--existing", "append")
    assert result.returncode == 1 and "1 failed" in result.stderr
    assert json.loads(result.stdout.splitlines()[0]) == first
    failing.rmdir()
    (again,) = caption(folder, "txt", output, existing="append", retry_errors=True)
    assert again == {key: value for key, value in first.items() if key != "error"}
    assert failing.read_text() == first["caption"] + "\n"
    os.umask(mask := os.umask(0))
    assert failing.stat().st_mode & 0o777 == 0o666 & ~mask
    assert len(read_lines(output)) == 2 and not Path(f"{output}.errors.jsonl").exists()


@pytest.mark.parametrize("kind", ["txt", "json"])
def test_no_photo_is_overwritten_by_a_sidecar(write: Write, photos: Photos, kind: str) -> None:
    first, second = sorted(photos(2).iterdir())
    data = first.read_bytes()
    os.link(first, first.with_suffix(f".{kind}"))
    shutil.copy(first, second.with_suffix(f".{kind}"))
    own, binary = write(first, second, kind=kind, existing="overwrite")
    assert own.startswith(f"{first} would be its own sidecar")
    assert binary.startswith(f"{second.with_suffix(f'.{kind}')} is not text")
    assert first.read_bytes() == second.with_suffix(f".{kind}").read_bytes() == data


@pytest.mark.parametrize(
    ("names", "sidecars"),
    [
        (("photo", "photo.jpg", "photo.jpg_large"), ("photo", "photo.jpg", "photo.jpg_large")),
        (("photo.jpg", "photo.jpg.png"), ("photo", "photo.jpg.png")),
        (("a.b.jpg", "a.c.jpg", "a"), ("a.b", "a.c", "a")),
        (("photo.jpg", "photo.heic.orig"), ("photo", "photo.heic.orig")),
    ],
)
def test_no_two_photos_share_a_sidecar(
    write: Write, photos: Photos, names: tuple[str, ...], sidecars: tuple[str, ...]
) -> None:
    """Whatever their suffixes, and in whatever order and runs they come."""
    folder = photos(len(names))
    for number, name in enumerate(names):
        (folder / f"p{number:03}.jpg").rename(folder / name)
    (folder / "photo.cr2").write_bytes(b"II*\0 a raw file has no caption")
    if "photo" not in names:
        (folder / "photo").write_text("A note is no photo.")
    for name in reversed(names):
        write(folder / name)
    assert sorted(path.stem for path in folder.glob("*.txt")) == sorted(sidecars)
    write(*(folder / name for name in names), existing="overwrite")
    texts = {path.stem: path.read_text() for path in folder.glob("*.txt")}
    assert texts == {sidecar: f"photo {number}\n" for number, sidecar in enumerate(sidecars)}


@pytest.mark.parametrize(
    ("code", "tried"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EIO, 1), (errno.EACCES, 2)]
)
def test_a_full_disk_ends_the_command_and_a_file_without_permission_does_not(
    run_main: Run, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    code: int, tried: int,
) -> None:  # fmt: skip
    folder, opened = photos(2), Path.open
    write_lines(tmp_path / "r.jsonl", *map(record_of, sorted(folder.iterdir())))

    def fail(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if mode == "xb":
            raise OSError(code, "the reason")
        return opened(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", fail)
    result = run_main("convert", tmp_path / "r.jsonl", "--sidecar", "txt")
    assert result.returncode == 1 and result.stderr.count("cannot be written: the reason") == tried


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", ["txt", "xmp"])
def test_a_link_is_followed_within_its_folder_alone(
    write: Write, photos: Photos, tmp_path: Path, kind: str, there: bool
) -> None:
    """A folder of photos may be untrusted, so links must not lead out of it."""
    folder = photos(2)
    theirs, inside = tmp_path / f"diary.{kind}", folder / "elsewhere"
    if there:
        theirs.write_text('<x:x xmlns:x="x"/>' if kind == "xmp" else "mine\n")
    before = theirs.exists() and theirs.read_bytes()
    links = [folder / f"p00{number}.{kind}" for number in range(2)]
    for link, place in zip(links, (f"../diary.{kind}", "elsewhere"), strict=True):
        link.symlink_to(place)
    (outside,) = write(folder / "p000.jpg", folder / "p001.jpg", kind=kind, existing="overwrite")
    assert all(link.is_symlink() for link in links)
    if kind == "txt" or not there:
        assert outside.startswith(f"{links[0]} is a symbolic link to ")
    assert (theirs.exists() and theirs.read_bytes()) == before
    assert (">Photo 1.<" if kind == "xmp" else "photo 1\n") in inside.read_text()


def test_a_sidecar_that_is_a_pipe_does_not_block(write: Write, photos: Photos) -> None:
    folder = photos(3)
    os.mkfifo(folder / "p000.txt")
    (folder / "p001.txt").mkdir()
    with (folder / "p002.txt").open("wb") as file:
        file.truncate(1 << 40)  # a hole
    for existing in ("skip", "overwrite"):
        pipe, place, hole = write(*sorted(folder.glob("*.jpg")), existing=existing)
        assert pipe == f"{folder}/p000.txt cannot be read: it is not a regular file"
        assert place.startswith(f"{folder}/p001.txt cannot be read: ")
        assert hole.startswith(f"{folder}/p002.txt has 1,099,511,627,776 bytes")


@pytest.mark.parametrize("raw", [b"II*\0 a raw file", b"\0\0\0\x18ftypcrx "])
@pytest.mark.parametrize("suffix", [".NEF", ".dng", ".CR3"])
def test_the_sidecar_of_a_raw_photo_is_not_changed(
    write: Write, photos: Photos, suffix: str, raw: bytes
) -> None:
    photo = photos(1) / "p000.jpg"
    photo.with_suffix(suffix).write_bytes(raw)
    photo.with_suffix(".xmp").write_text(LIGHTROOM)
    for existing in ("skip", "overwrite"):
        assert write(photo, kind="xmp", existing=existing) == []
    assert photo.with_suffix(".xmp").read_text() == LIGHTROOM
    assert "Photo 0." in photo.with_suffix(".jpg.xmp").read_text()
    write(photo)
    assert photo.with_suffix(".txt").read_text() == "photo 0\n"  # raw photos have no texts
