"""Texts in JPEG files, as exiftool and Pillow read them; and the files that must not change."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import ExifTags, Image, TiffImagePlugin

from captioner import Captioner
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.outputs import embedding
from captioner_serving.batch.outputs.embedding import read_own_texts
from captioner_serving.batch.outputs.xmp import DESCRIPTION
from tests.captioner.pictures import encode
from tests.conftest import read_tree
from tests.launcher import Run
from tests.serving.batch.conftest import (
    Photos,
    Records,
    Start,
    draw,
    exiftool,
    read_tags,
    record_of,
    write_lines,
)
from tests.serving.server.running import until

pytestmark = [pytest.mark.needs("exiftool"), pytest.mark.slow]

Embed = Callable[..., Records]
XMP = {"x": "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "dc": "http://purl.org/dc/elements/1.1/"}
SECOND = 1_577_934_245  # in 2020


@pytest.fixture
def embed(tiny: Captioner) -> Embed:
    """Caption photos with texts embedded."""

    def run(sources: Any, output: Path | None = None, **more: Any) -> Records:
        config = BatchConfig(embed=True, sidecar="xmp", **more)
        return list(caption_batch(sources, output=output, config=config, captioner=tiny))

    return run


def exiftools_in(folder: Path) -> list[str]:
    """The processes of exiftool whose temporary files would lie in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, variables = ((process / name).read_bytes() for name in ("cmdline", "environ"))
            if b"-common_args" in command and f"TMPDIR={folder}".encode() in variables:
                found.append(process.name)
    return found


def pixels(photo: bytes) -> bytes:
    """The compressed picture: all that is behind the header."""
    return photo[photo.index(b"\xff\xda") :]


def test_exiftool_and_pillow_read_the_texts_and_the_file_is_otherwise_the_same(
    embed: Embed, photos: Photos
) -> None:
    folder = photos(1)
    photo, original = folder / "p000.jpg", folder / "p000.jpg_original"
    dates = ("-DateTimeOriginal=2020:01:02 03:04:05", "-ModifyDate=2020:01:02 03:04:06")
    exiftool("-q", "-overwrite_original", *dates, photo)
    photo.chmod(0o640)
    os.utime(photo, (SECOND, SECOND))
    before, status = photo.read_bytes(), photo.stat()
    (line,) = embed(folder, language="pt-BR")
    text = line["caption"].capitalize() + "."
    (tags,) = read_tags(photo)
    for tag in ("XMP-dc:Description", "XMP-iptcCore:AltTextAccessibility"):
        assert tags[tag] == text
    with Image.open(photo) as image:
        root = ElementTree.fromstring(image.info["xmp"])
        assert root.findtext(".//dc:description//x:li", namespaces=XMP) == text
        assert image.getexif()[0x0132] == "2020:01:02 03:04:06"
    after = photo.read_bytes()
    assert pixels(after) == pixels(before) and after != before
    assert photo.stat().st_mtime_ns == status.st_mtime_ns
    assert photo.stat().st_mode == status.st_mode
    assert original.read_bytes() == before and original.stat().st_mtime_ns == status.st_mtime_ns
    # Once more: nothing changes. And exiftool takes it back.
    embed(folder, language="pt-BR")
    assert photo.read_bytes() == after and original.read_bytes() == before
    exiftool("-q", "-restore_original", photo)
    assert photo.read_bytes() == before and not original.exists()


def test_texts_and_keywords_of_others_stay(tmp_path: Path, run_main: Run) -> None:
    """Photos with a description in IPTC or EXIF are left, and counted."""
    tags = {
        "xmp": ("-XMP-dc:Description=Am Strand", "-XMP-xmp:Rating=4"),
        "subject": ("-XMP-dc:Subject=SEA",),
        "iptc": ("-IPTC:Caption-Abstract=Grandma",),
        "exif": ("-EXIF:ImageDescription=Grandma",),
        "camera": ("-EXIF:ImageDescription=OLYMPUS DIGITAL CAMERA",),
        "none": ("-EXIF:Artist=Ann",),
    }
    paths = [tmp_path / f"{name}.jpg" for name in tags]
    for number, (path, texts) in enumerate(zip(paths, tags.values(), strict=True)):
        draw(number).save(path)
        exiftool("-q", "-overwrite_original", *texts, path)
    text = "a <dog> &\n'sea'"
    write_lines(
        tmp_path / "r.jsonl", *(record_of(path, text, keywords=["dog", "sea"]) for path in paths)
    )
    convert = ("convert", tmp_path / "r.jsonl", "--sidecar", "xmp", "--embed")
    before = {path.name: path.read_bytes() for path in paths}
    result = run_main(*convert, "--template", "{caption}", "--language", "en-US")
    assert result.returncode == 0, result.stderr
    assert "3 photos with their own description; 4 photos with new texts embedded; 2 without" in (
        result.stderr
    )
    after = {path.name: path.read_bytes() for path in paths}
    assert [name for name in before if before[name] == after[name]] == ["iptc.jpg", "exif.jpg"]
    xmp, subject, _, _, camera, none = read_tags(*paths)
    assert xmp["XMP-dc:Description"] == "Am Strand" and xmp["XMP-xmp:Rating"] == 4
    assert xmp["XMP-iptcCore:AltTextAccessibility"] == text
    assert subject["XMP-dc:Subject"] == "SEA"
    for one in (subject, camera, none):
        assert one["XMP-dc:Description"] == text
    assert none["XMP-dc:Subject"] == ["dog", "sea"]
    assert "photos with new texts" not in run_main(*convert).stderr
    assert {path.name: path.read_bytes() for path in paths} == after


def test_damaged_iptc_hides_no_other_text_of_the_owner(tmp_path: Path) -> None:
    """Pillow raises on an IPTC block with junk. A TIFF may have its description as bytes."""
    iptc = b"\x1c\x02\x05\0\x01T junk"
    block = b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0" + struct.pack(">I", len(iptc)) + iptc + b"\0"
    exif = Image.Exif()
    exif[ExifTags.Base.ImageDescription] = "Anna"
    data = encode(Image.new("RGB", (8, 8)), "JPEG", exif=exif)
    segment = b"\xff\xed" + struct.pack(">H", len(block) + 2) + block
    (tmp_path / "a.jpg").write_bytes(data[:2] + segment + data[2:])
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[ExifTags.Base.ImageDescription] = b"Anna"
    tags.tagtype[ExifTags.Base.ImageDescription] = 7
    Image.new("RGB", (8, 8)).save(tmp_path / "a.tiff", tiffinfo=tags)
    for name in ("a.jpg", "a.tiff"):
        assert read_own_texts(str(tmp_path / name)) == {DESCRIPTION: "Anna"}, name


def test_photos_of_any_name_are_embedded(
    photos: Photos, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        "-delete_original.jpg",
        "%d #.jpg",
        "Müller 图.JPG",
        "é\udcff.jpg",
        "é\udcff.JPG",
        "plain",
    ]
    folder = photos(len(names))
    monkeypatch.chdir(folder)
    for photo, name in zip(sorted(folder.iterdir()), names, strict=True):
        photo.rename(name)
    write_lines(folder / "r.jsonl", *map(record_of, names))
    assert run_main("convert", "r.jsonl", "--sidecar", "xmp", "--embed").returncode == 0
    for name in names:
        with Image.open(name) as image:
            assert b"AltTextAccessibility" in image.info["xmp"]
        assert Path(f"{name}_original").exists()


def test_what_must_not_be_changed_is_left_and_counted(
    photos: Photos, run_batch: Run, tmp_path: Path
) -> None:
    folder = photos(6)
    Image.open(folder / "p000.jpg").save(folder / "p000.jpg", "PNG")
    (folder / "p001.jpg").chmod(0o400)
    (folder / "p002.jpg").rename(tmp_path / "real.jpg")
    (folder / "p002.jpg").symlink_to("../real.jpg")
    os.link(folder / "p003.jpg", tmp_path / "second name.jpg")
    (folder / "p004.jpg").rename(folder / "new\nline.jpg")
    before = read_tree(folder)
    command = (folder, "--output", tmp_path / "c.jsonl", "--sidecar", "xmp", "--embed")
    result = run_batch(*command)
    assert result.returncode == 0
    assert "6 captions in total; 1 photo with new texts embedded; 5 without" in result.stderr
    # The backup is no input, is not counted, and shares no sidecar.
    again = run_batch(folder, "--output", tmp_path / "b.jsonl", "--sidecar", "caption")
    assert "6 captions in total\n" in again.stderr and "skipped" not in again.stderr
    names = {path.name for path in folder.glob("*.caption")}
    assert len(names) == 6 and "p005.caption" in names
    for name in names:
        (folder / name).unlink()
    after = {name: data for name, data in read_tree(folder).items() if not name.endswith(".xmp")}
    assert after.pop("p005.jpg") != before["p005.jpg"] == after.pop("p005.jpg_original")
    assert after == {name: data for name, data in before.items() if name != "p005.jpg"}


def test_a_photo_that_exiftool_refuses_is_an_error_and_costs_no_caption(
    embed: Embed, photos: Photos, tmp_path: Path
) -> None:
    """A folder has the name of its temporary file; a file of a killed exiftool is removed.

    A sidecar that vanished is an error too.
    """
    folder, output = photos(3), tmp_path / "c.jsonl"
    (folder / "p000.jpg_exiftool_tmp").touch()
    (folder / "p001.jpg_exiftool_tmp").mkdir()
    good, bad, last = embed(folder, output)
    assert "error" not in good and "error" not in last and bad["caption"]
    assert bad["error"]["type"] == "output-error"
    assert bad["error"]["detail"].startswith(f"exiftool cannot write {folder}/p001.jpg (")
    (folder / "p001.jpg_exiftool_tmp").rmdir()
    (again,) = embed(folder, output, retry_errors=True)
    assert "error" not in again and (folder / "p001.jpg_original").is_file()
    assert len(output.read_text().splitlines()) == 3
    (folder / "p002.xmp").unlink()
    sidecars = {f"{folder}/{name}.jpg": f"{folder}/{name}.xmp" for name in ("p001", "p002")}
    ((photo, error),) = embedding.embed(sidecars, Counter()).items()
    assert photo == f"{folder}/p002.jpg" and sidecars[photo] in str(error)


@pytest.mark.parametrize(
    ("script", "found"),
    [(None, "it does not run"), ("echo 12.38", "12.38"), ("echo no perl >&2; exit 2", "no perl")],
)
def test_without_a_fit_exiftool_nothing_begins(
    photos: Photos, run_batch: Run, embed: Embed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    script: str | None, found: str,
) -> None:  # fmt: skip
    """One that dies later costs no caption."""
    program, folder = tmp_path / "bin" / "exiftool", photos(2)
    program.parent.mkdir()
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    result = run_batch(folder, "--output", tmp_path / "c.jsonl", "--sidecar", "xmp", "--embed")
    assert result.returncode == 1 and f"exiftool 12.39 or newer ({found}" in result.stderr
    assert not list(tmp_path.glob("c.*"))
    program.write_text('#!/bin/sh\n[ "$1" = -ver ] && echo 12.39 && exit\nexit 1\n')
    program.chmod(0o755)
    for line in embed(folder):
        assert line["caption"] and "exiftool cannot write" in line["error"]["detail"]


def test_a_restart_writes_whole_sidecars_beside_embedded_texts(
    embed: Embed, photos: Photos, tmp_path: Path
) -> None:
    """The owner's text stays the owner's, also one that exiftool wrote with a backup."""
    folder, output = photos(2), tmp_path / "c.jsonl"
    exiftool("-q", "-XMP-dc:Description=Oma", folder / "p001.jpg")
    embed(folder, output)
    before = {path.name: path.read_bytes() for path in folder.glob("*.xmp")}
    assert b"AltText" in before["p001.xmp"] and b"dc:description" not in before["p001.xmp"]
    embed(folder, output, restart=True)
    assert {path.name: path.read_bytes() for path in folder.glob("*.xmp")} == before
    # Without the backup, a photo that has both texts gets no sidecar.
    for path in folder.glob("*.xmp"):
        path.unlink()
    (folder / "p000.jpg_original").unlink()
    embed(folder, output, restart=True)
    assert [path.name for path in folder.glob("*.xmp")] == ["p001.xmp"]


@pytest.mark.parametrize("existing", ["skip", "overwrite", "append"])
def test_another_text_replaces_the_copies_only_if_asked(
    photos: Photos, run_main: Run, tmp_path: Path, existing: str
) -> None:
    folder, records = photos(2), tmp_path / "r.jsonl"
    exiftool("-q", "-overwrite_original", "-XMP-dc:Description=Oma", folder / "p001.jpg")
    names = [f"p00{number}.jpg" for number in range(2)]
    for text in ("one", "two"):
        write_lines(records, *(record_of(name, corrected=text) for name in names))
        options = ("--existing", existing) if text == "two" else ()
        convert = ("convert", records, "--root", folder, "--sidecar", "xmp", "--embed", *options)
        assert run_main(*convert).returncode == 0
    wanted = {"skip": "one", "overwrite": "two", "append": "one two"}[existing]
    ours, mixed = read_tags(*(folder / name for name in names))
    for tags in (ours, mixed):
        assert tags["XMP-iptcCore:AltTextAccessibility"] == wanted
    assert (ours["XMP-dc:Description"], mixed["XMP-dc:Description"]) == (wanted, "Oma")


def test_kill_9_leaves_every_photo_whole_and_a_resume_embeds_the_rest(
    photos: Photos, start_batch: Start, tmp_path: Path
) -> None:
    folder, output = photos(12), tmp_path / "c.jsonl"
    before = read_tree(folder)
    command = (folder, "--output", output, "--sidecar", "xmp", "--embed", "--quiet")
    process = start_batch(*command, environment={"TMPDIR": str(tmp_path)})
    assert until(lambda: list(folder.glob("*_original")))
    process.send_signal(signal.SIGKILL)
    process.communicate()  # returns when the last process with its pipes has ended
    assert until(lambda: not exiftools_in(tmp_path))
    for name in before:
        found = (folder / name).read_bytes()
        assert pixels(found) == pixels(before[name])
    with start_batch(*command) as process:
        assert process.wait(300) == 0
    after = read_tree(folder)
    assert len(output.read_text().splitlines()) == 12
    assert {name: after[f"{name}_original"] for name in before} == before
    assert len(after) == 36 and all(b"AltTextAccessibility" in after[name] for name in before)
