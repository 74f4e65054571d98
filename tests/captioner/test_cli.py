"""The command as people run it: a process, its output, its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from captioner import __version__
from captioner.cli import VERBS

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_version(run_captioner: Run) -> None:
    result = run_captioner("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"captioner {__version__}")


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_short_has_examples_and_imports_no_torch(verb: str) -> None:
    script = (
        "import sys; from captioner.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    path = os.pathsep.join(part for part in sys.path if part)
    result = subprocess.run(
        [sys.executable, "-c", script, verb, "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert result.returncode == 0
    assert result.stderr.strip() == "False"
    assert f"captioner {verb} " in result.stdout.split("examples:")[1]
    assert len(result.stdout.splitlines()) < 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: captioner"),
        (("shout",), "invalid choice: 'shout'"),
        (("caption",), "PHOTO"),
        (("caption", "a.jpg", "--sheep", "x"), "unrecognized arguments: --sheep"),
        (("caption", "a.jpg", "--attention"), "it needs --json"),
        (("caption", "a.jpg", "--word", "dog"), "it needs --overlay"),
        (("caption", "a.jpg", "b.jpg", "--sheet", "s.png"), "put {name} into it"),
        (("caption", "a.jpg", "--beam-size", "0"), "beam_size 0 is out of range"),
        (("caption", "a.jpg", "--beam-size", "many"), "invalid int value"),
        (("caption", "a.jpg", "--beam-size", "5", "--captions", "9"), "at most beam_size, 5"),
        (("train", "nonsense"), "there is no recipe 'nonsense'"),
        (("train", "smoke", "--seed"), "--seed has no value"),
        (("train", "smoke", "extra"), "'extra' is neither an option nor a field"),
    ],
)
def test_wrong_usage_is_status_2_and_a_sentence(
    run_captioner: Run, arguments: tuple[str, ...], message: str
) -> None:
    result = run_captioner(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_one_photo_prints_its_sentence(run_captioner: Run, tiny_file: Path, photo: Path) -> None:
    result = run_captioner("caption", photo, "--checkpoint", tiny_file)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) == 1
    assert str(photo) not in result.stdout


def test_many_photos_and_one_bad_one(
    run_captioner: Run, tiny_file: Path, photo: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(photo.read_bytes()[:200])
    result = run_captioner("caption", photo, bad, photo, "--checkpoint", tiny_file)
    assert result.returncode == 1
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == [str(photo)] * 2
    assert result.stderr.startswith(f"captioner: {bad}")
    assert len(result.stderr.splitlines()) == 1


def test_json_records(run_captioner: Run, tiny_file: Path, photo: Path) -> None:
    missing = photo.parent / "missing.jpg"
    result = run_captioner(
        "caption", photo, missing, "--json", "--attention", "--captions", 2,
        "--checkpoint", tiny_file,
    )  # fmt: skip
    assert result.returncode == 1
    caption, error = map(json.loads, result.stdout.splitlines())
    assert caption["image"] == str(photo)
    assert len(caption["alternatives"]) == 1
    for word in caption["words"]:
        assert sum(word["attention"]["weights"]) == pytest.approx(1, abs=1e-4)
    assert error["image"] == str(missing)
    assert error["error"]["type"] == "image-not-found"
    assert str(missing) in error["error"]["detail"]


def test_pictures(run_captioner: Run, tiny_file: Path, photo: Path, tmp_path: Path) -> None:
    sheet, overlay, animation = (tmp_path / name for name in ("s.png", "o.jpg", "a.webp"))
    result = run_captioner(
        "caption", photo, "--checkpoint", tiny_file, "--sheet", sheet, "--overlay", overlay,
        "--word", 2, "--animation", animation,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    words = len(result.stdout.split())
    with Image.open(overlay) as picture:
        assert picture.size == (120, 80)
    with Image.open(animation) as picture:
        assert picture.n_frames == words + 2  # type: ignore[attr-defined]  # the photo, the whole
    with Image.open(sheet) as picture:
        assert picture.width > 120


def test_names_in_pictures_of_many(
    run_captioner: Run, tiny_file: Path, photo: Path, tmp_path: Path
) -> None:
    other = photo.with_name("other photo.jpg")
    other.write_bytes(photo.read_bytes())
    result = run_captioner(
        "caption", photo, other, "--checkpoint", tiny_file, "--sheet", tmp_path / "{name}.png"
    )
    assert result.returncode == 0
    assert (tmp_path / "photo.png").exists() and (tmp_path / "other photo.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sheet", "nowhere/sheet.png"), "nowhere"),
        (("--sheet", "sheet.tiff"), ".png"),
        (("--animation", "a.mp4"), ".gif"),
        (("--overlay", "o.png", "--word", "zebra"), "zebra"),
    ],
)
def test_pictures_that_cannot_be_written(
    run_captioner: Run, tiny_file: Path, photo: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run_captioner("caption", photo, "--checkpoint", tiny_file, *arguments)
    assert result.returncode == 1
    assert message in result.stderr and "Traceback" not in result.stderr
    assert result.stdout  # the caption itself was made


def test_checkpoints_and_devices_that_cannot_be_used(run_captioner: Run, photo: Path) -> None:
    result = run_captioner("caption", photo, "--checkpoint", photo)
    assert result.returncode == 1
    assert "cut off, damaged or not a safetensors file" in result.stderr
    result = run_captioner("caption", photo, "--checkpoint", "nowhere.safetensors")
    assert (result.returncode, result.stdout) == (1, "")
    assert "there is no checkpoint nowhere.safetensors" in result.stderr


def test_file_names_that_are_no_text(
    run_captioner: Run, tiny_file: Path, photo: Path, tmp_path: Path
) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9\nnew 'line'.jpg"
    with open(odd, "wb") as file:  # noqa: PTH123  # pathlib has no bytes paths
        file.write(photo.read_bytes())
    name = os.fsdecode(odd)
    result = run_captioner("caption", name, "--json", "--checkpoint", tiny_file)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["image"] == name
