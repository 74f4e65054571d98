"""A folder with every kind of broken and odd file that people have."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from pathlib import Path

import pytest

from captioner import ImageNotFoundError
from captioner_serving.batch.inputs.photos import PhotoFile
from tests.captioner.pictures import encode, png
from tests.launcher import Run
from tests.serving.batch.conftest import draw


def sound() -> dict[bytes, bytes]:
    """Names and contents of files that show a picture; the library's tests have all formats."""
    image = draw(1, (96, 64))
    jpeg = encode(image, "JPEG", quality=95)
    names = (
        *(b"two\nlines.jpg", b"'single' \"double\" `back`.jpg", b"-option.jpg", b"UPPER.JPG"),
        *(b"\xf0\x9f\x90\xb6 dog \xe2\x9d\xa4.jpg", b"latin \xe9\xff.jpg", b"n" * 246 + b".jpg"),
        b"$(touch pwned) %s {caption}.jpg",
    )
    return {
        b"several pages.tif": encode(image, "TIFF", save_all=True, append_images=[image]),
        b"png with the wrong suffix.jpg": encode(image, "PNG"),
        **{name: jpeg + name for name in names},
    }


def broken() -> dict[bytes, tuple[bytes, str]]:
    """Names, contents and the type of error of files that cannot be captioned."""
    jpeg = encode(draw(1, (96, 64)), "JPEG", quality=95)
    drawn = encode(draw(1, (96, 64)), "PNG")
    return {
        b"truncated.jpg": (jpeg[: len(jpeg) // 2], "image-truncated"),
        b"damaged.png": (drawn[:60] + b"\0\0\0\0" + drawn[64:], "image-truncated"),
        b"renamed film.jpg": (b"\0\0\0\x20ftypisom\0\0\2\0isomiso2", "image-format"),
        b"zero bytes.jpg": (b"", "image-empty"),
        b"bomb.png": (png(30_000, 30_000), "image-too-large"),
    }


def test_odd_files_are_captioned_and_broken_ones_named(run_batch: Run, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    raw = os.fsencode(folder)
    for name, data in sound().items():
        _write(raw + b"/" + name, data)
    errors = {}
    for name, (data, kind) in broken().items():
        _write(raw + b"/" + name, data)
        errors[name] = kind
    os.mkfifo(folder / "pipe.jpg")
    with (folder / "film.jpg").open("wb") as file:
        file.truncate(1 << 40)  # a hole
    errors[b"film.jpg"] = "image-too-large"
    (folder / "dangling.jpg").symlink_to("nowhere.jpg")
    (folder / "circle.jpg").symlink_to("circle.jpg")
    errors |= dict.fromkeys((b"pipe.jpg", b"dangling.jpg", b"circle.jpg"), "image-not-found")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket must be short
        server.bind("socket.jpg")
        os.chdir(here)
    errors[b"socket.jpg"] = "image-not-found"
    if os.geteuid() != 0:
        _write(raw + b"/secret.jpg", b"")
        (folder / "secret.jpg").chmod(0)
        errors[b"secret.jpg"] = "image-not-found"
    # What is no photo, and is left out:
    (folder / "album.jpg").mkdir()
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / ".hidden.jpg").write_bytes(b"")
    (folder / "notes.txt").write_text("no photo")
    before = _state(folder)

    output = tmp_path / "captions.jsonl"
    result = run_batch(folder, "--output", output)
    assert _state(folder) == before
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"{folder}/film.jpg has more than 1,073,741,824 bytes" in result.stderr
    assert f"{len(errors)} failed, in {output}.errors.jsonl" in " ".join(result.stderr.split())
    records = [json.loads(line) for line in output.read_text().splitlines()]
    written = output.read_bytes()  # in their own letters, for whoever searches for a name
    assert b"\xf0\x9f\x90\xb6 dog \xe2\x9d\xa4.jpg" in written
    assert rb"latin \udce9\udcff.jpg" in written
    names = sorted(sound(), key=os.fsdecode)
    assert [os.fsencode(record["image"]) for record in records] == [raw + b"/" + n for n in names]
    failed = [json.loads(line) for line in Path(f"{output}.errors.jsonl").read_text().splitlines()]
    assert {
        os.fsencode(record["image"])[len(raw) + 1 :]: record["error"]["type"] for record in failed
    } == errors
    for record in failed:
        assert record["image"] in record["error"]["detail"]
        assert record["image"] in result.stderr


def _write(path: bytes, data: bytes) -> None:
    with open(path, "wb") as file:  # noqa: PTH123  # pathlib has no bytes paths
        file.write(data)


def _state(folder: Path) -> dict[bytes, tuple[int, int, int, int]]:
    """Sizes and dates of a folder and all that is in it; of files, when they were last read too."""
    time.sleep(0.02)
    raw = os.fsencode(folder)
    state = {}
    for entry in [raw, *(raw + b"/" + name for name in os.listdir(raw))]:  # noqa: PTH208
        status = os.lstat(entry)
        access = status.st_atime_ns if stat.S_ISREG(status.st_mode) else 0
        state[entry] = (status.st_size, status.st_mtime_ns, access, status.st_mode)
    return state


def test_a_folder_that_a_list_names_leaves_no_file_open(tmp_path: Path) -> None:
    folder = PhotoFile(name="a", path=str(tmp_path))
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        with pytest.raises(ImageNotFoundError, match="a is a folder: check the path"):
            folder.read()
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
