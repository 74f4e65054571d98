"""Texts in JPEG files, as exiftool and Pillow read them; and the files that must not change."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from captioner import Captioner
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.outputs.exiftool import check_exiftool
from tests.conftest import read_tree
from tests.launcher import Run
from tests.serving.batch.conftest import (
    Photos,
    Records,
    Start,
    draw,
    read_tags,
    record_of,
    write_lines,
)

pytestmark = [pytest.mark.needs("exiftool"), pytest.mark.slow]

Embed = Callable[..., Records]
XMP = {
    "x": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
}
SECOND = 1_577_934_245  # in 2020


@pytest.fixture
def embed(tiny: Captioner) -> Embed:
    """Caption photos with texts embedded."""

    def run(sources: Any, output: Path | None = None, **more: Any) -> Records:
        config = BatchConfig(embed=True, **more)
        return list(caption_batch(sources, output=output, config=config, captioner=tiny))

    return run


def exiftool(*arguments: object) -> str:
    command = ["exiftool", "-q", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def exiftools_in(folder: Path) -> list[str]:
    """The processes of exiftool whose temporary files would lie in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, variables = ((process / name).read_bytes() for name in ("cmdline", "environ"))
            if b"-stay_open" in command and f"TMPDIR={folder}".encode() in variables:
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
    exiftool("-overwrite_original", *dates, photo)
    photo.chmod(0o640)
    os.utime(photo, ns=(SECOND * 10**9 + 1, SECOND * 10**9 + 2))
    before, status = photo.read_bytes(), photo.stat()
    (line,) = embed(folder, language="pt-BR")
    text = line["caption"].capitalize() + "."
    (tags,) = read_tags(photo)
    for tag in ("XMP-dc:Description", "XMP-iptcCore:AltTextAccessibility"):
        assert tags[tag] == tags[f"{tag}-pt-BR"] == text
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
    tree = read_tree(folder)
    embed(folder)
    embed(folder, language="pt-BR", existing="append")
    assert read_tree(folder).keys() == tree.keys() and original.read_bytes() == before
    exiftool("-restore_original", photo)
    assert read_tree(folder) == {"p000.jpg": before}


def test_texts_and_keywords_of_others_stay(tmp_path: Path, run_main: Run) -> None:
    """As in sidecars; and texts that are in IPTC alone count."""
    names = ("xmp", "iptc", "none", "own")
    for number, name in enumerate(names):
        draw(number).save(tmp_path / f"{name}.jpg")
    strand = "-XMP-dc:Description-x-default=Am Strand", "-XMP-dc:Description-de=Am Strand"
    exiftool("-overwrite_original", *strand, "-XMP-dc:Subject=SEA", "-XMP-xmp:Rating=4",
        tmp_path / "xmp.jpg")  # fmt: skip
    exiftool("-overwrite_original", "-XMP-dc:Description-en-US=mine", tmp_path / "own.jpg")
    exiftool("-overwrite_original", "-IPTC:Caption-Abstract=Grandma", "-IPTC:Keywords=2024",
        "-IPTC:Keywords=dog", tmp_path / "iptc.jpg")  # fmt: skip
    records = [
        record_of(tmp_path / f"{name}.jpg", "a <dog> &\n'sea'", keywords=["dog", "sea"])
        for name in names
    ]
    write_lines(tmp_path / "r.jsonl", *records)
    for _ in range(2):
        more = ("--embed", "--no-backup", "--plain", "--language", "en-US")
        result = run_main("convert", tmp_path / "r.jsonl", *more)
        assert result.returncode == 0, result.stderr
    assert result.stderr == "4 captions; 0 photos written; 4 unchanged\n"
    assert not list(tmp_path.glob("*_original"))
    write_lines(tmp_path / "r.jsonl", records[-1])
    assert run_main("convert", tmp_path / "r.jsonl", *more, "--existing", "append").returncode == 0
    xmp, iptc, none, own = read_tags(*(tmp_path / f"{name}.jpg" for name in names))
    text = "a <dog> &\n'sea'"
    assert xmp["XMP-dc:Description"] == xmp["XMP-dc:Description-de"] == "Am Strand"
    assert xmp["XMP-dc:Description-en-US"] == xmp["XMP-iptcCore:AltTextAccessibility"] == text
    assert (xmp["XMP-dc:Subject"], xmp["XMP-xmp:Rating"]) == (["SEA", "dog"], 4)
    assert "XMP-dc:Description" not in iptc and iptc["IPTC:Caption-Abstract"] == "Grandma"
    assert iptc["XMP-dc:Subject"] == [2024, "dog", "sea"]
    assert own["XMP-dc:Description-en-US"] == f"mine {text}"
    assert none["XMP-dc:Description-en-US"] == text and none["XMP-dc:Subject"] == ["dog", "sea"]


def test_photos_of_any_name_are_embedded(
    photos: Photos, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["-delete_original.jpg", "new\nline %d.jpg", "Müller 图.JPG", "é\udcff"]
    folder = photos(len(names))
    monkeypatch.chdir(folder)
    for photo, name in zip(sorted(folder.iterdir()), names, strict=True):
        photo.rename(name)
    write_lines(folder / "r.jsonl", *map(record_of, names))
    assert run_main("convert", "r.jsonl", "--embed").returncode == 0
    for name in names:
        with Image.open(name) as image:
            assert b"AltTextAccessibility" in image.info["xmp"]
        assert Path(f"{name}_original").exists()


def test_the_original_is_copied_where_there_are_no_hard_links(
    embed: Embed, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    photo = photos(1) / "p000.jpg"
    os.utime(photo, ns=(SECOND * 10**9, SECOND * 10**9))
    before = photo.read_bytes()
    monkeypatch.setattr(os, "link", fail)
    (record,) = embed(photo)
    original = photo.with_name("p000.jpg_original")
    assert "error" not in record and original.read_bytes() == before != photo.read_bytes()
    assert original.stat().st_mtime_ns == SECOND * 10**9


def test_what_cannot_be_embedded_is_a_sentence_and_costs_no_caption(
    embed: Embed, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(4), tmp_path / "c.jsonl"
    Image.open(folder / "p000.jpg").save(folder / "p000.jpg", "PNG")
    (folder / "p001.jpg").chmod(0o400)
    (tmp_path / "real.jpg").write_bytes((folder / "p002.jpg").read_bytes())
    (folder / "p002.jpg").unlink()
    (folder / "p002.jpg").symlink_to("../real.jpg")
    before = read_tree(folder)
    *records, good = embed(folder, output)
    details = [line["error"]["detail"].removeprefix(f"{folder}/") for line in records]
    assert details == [
        "p000.jpg is not a JPEG file: texts cannot be embedded; use --sidecar xmp",
        "p001.jpg is read-only: make it writable to embed texts",
        "p002.jpg is a symbolic link: texts can only be embedded in the file itself; name that "
        "file instead",
    ]
    assert all(line["caption"] for line in records) and "error" not in good
    after = read_tree(folder)
    assert after.pop("p003.jpg") != before.pop("p003.jpg") and after.pop("p003.jpg_original")
    assert after == before
    (folder / "p001.jpg").chmod(0o600)
    again = embed(folder, output, retry_errors=True, backup=False)
    assert sum("error" in line for line in again) == 2 and len(again) == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "embed needs exiftool, which is not installed: install it"),
        ("echo 12.38", "exiftool is version 12.38; embed needs 12.39 or newer: install it"),
        ("echo no perl >&2; exit 2", "exiftool does not run (no perl): install it"),
    ],
)
def test_without_a_fit_exiftool_nothing_begins(
    photos: Photos,
    run_batch: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    said: str,
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    if script is not None:
        (programs / "exiftool").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "exiftool").chmod(0o755)
    folder = photos(1)
    monkeypatch.setenv("PATH", str(programs))
    result = run_batch(folder, "--output", tmp_path / "c.jsonl", "--embed")
    assert result.returncode == 1 and said in result.stderr
    assert not list(tmp_path.glob("c.*"))
    (programs / "exiftool").write_text("#!/bin/sh\necho 12.39\n")
    (programs / "exiftool").chmod(0o755)
    check_exiftool()


def test_an_exiftool_that_dies_costs_one_photo(
    photos: Photos, embed: Embed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, folder = tmp_path / "bin", photos(3)
    programs.mkdir()
    real, flag = exiftool("-ver") and subprocess.getoutput("command -v exiftool"), tmp_path / "flag"
    script = f'#!/bin/sh\n[ "$1" = -ver ] || [ -e {flag} ] || {{ touch {flag}; exit 1; }}\n'
    (programs / "exiftool").write_text(f'{script}exec {real} "$@"\n')
    (programs / "exiftool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    first, *others = embed(folder)
    assert "(exiftool exited or took too long)" in first["error"]["detail"]
    assert not any("error" in line for line in others)


def test_copies_are_neither_inputs_nor_named_and_share_no_sidecar(
    photos: Photos, run_batch: Run, tmp_path: Path
) -> None:
    folder = photos(2)
    result = run_batch(folder, "--output", tmp_path / "a.jsonl", "--embed")
    assert "2 captions in total; 2 photos with new texts embedded\n" in result.stderr
    result = run_batch(folder, "--output", tmp_path / "b.jsonl", "--sidecar", "txt")
    assert "2 captions in total\n" in result.stderr and "skipped" not in result.stderr
    assert sorted(path.name for path in folder.glob("*.txt")) == ["p000.txt", "p001.txt"]


def test_kill_9_leaves_every_photo_whole_and_a_resume_embeds_the_rest(
    photos: Photos, start_batch: Start, tmp_path: Path
) -> None:
    folder, output = photos(12), tmp_path / "c.jsonl"
    before = read_tree(folder)
    command = (folder, "--output", output, "--embed", "--quiet", "--batch-size", "1")
    process = start_batch(*command, environment={"TMPDIR": str(tmp_path)})
    end = time.monotonic() + 120
    while not list(folder.glob("*_original")) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()  # returns when the last process with its pipes has ended
    while exiftools_in(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not exiftools_in(tmp_path)
    for name in before:
        found = (folder / name).read_bytes()
        assert pixels(found) == pixels(before[name])
    with start_batch(*command) as process:
        assert process.wait(300) == 0
    after = read_tree(folder)
    assert len(output.read_text().splitlines()) == 12
    assert {name: after[f"{name}_original"] for name in before} == before
    assert len(after) == 24 and all(b"AltTextAccessibility" in after[name] for name in before)
