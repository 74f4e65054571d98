"""The command as people run it: a process, its output, its exit status."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

from captioner import __version__
from captioner.checkpoint import FORMAT_VERSION, HEADER_KEY
from captioner.cli import VERBS
from tests.launcher import environment, refuse

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_version(run_captioner: Run) -> None:
    result = run_captioner("--version")
    assert (result.returncode, result.stdout.strip()) == (0, f"captioner {__version__}")


@pytest.mark.parametrize("loaded", [False, True])
def test_a_process_that_ends_collects_no_garbage(loaded: bool) -> None:
    """Looking for some takes half a second, once torch is imported.

    But what triton leaves uncollected is reported, over a hundred lines at the end of a training.
    """
    code = (
        "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 1000))\n"
        f"if {loaded}: sys.modules['triton'] = sys\n"
        "from captioner.cli import main; main()"
    )
    line = [sys.executable, "-c", code, "--version"]
    result = subprocess.run(line, capture_output=True, text=True, env=environment(), check=True)
    assert result.stdout.splitlines() == [f"captioner {__version__}", str(not loaded)]


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_short_has_examples_and_imports_no_torch(verb: str) -> None:
    script = (
        "import sys; from captioner.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, verb, "--help"],
        capture_output=True,
        text=True,
        env=environment(),
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
        (("caption", "a.jpg", "--beam-size", "0"), "captioner: --beam-size 0 is out of range"),
        (("caption", "a.jpg", "--beam-size", "many"), "invalid int value"),
        (("caption", "a.jpg", "--beam-size", "5", "--captions", "9"), "at most --beam-size, 5"),
        (("caption", "a.jpg", "--colors", "viridis"), "--colors is for pictures"),
        (("caption", "a.jpg", "--sheet", "s.png", "--colors", "red"), "invalid choice: 'red'"),
        (("caption", "a.jpg", "--max-pixels", "0"), "--max-pixels 0 is out of range"),
        (("caption", "a.jpg", "--sheet", "nowhere/s.png"), "there is no folder nowhere"),
        (("caption", "a.jpg", "--sheet", "s.tiff"), ".png"),
        (("caption", "a.jpg", "--animation", "a.mp4"), ".gif"),
        (("caption", "a.jpg", "--sheet", "{x}.png"), "{x} is not known; {name} and {number} are"),
        (("train", "nonsense"), "there is no recipe 'nonsense'"),
        (("train", "smoke", "--seed"), "--seed has no value"),
        (("train", "smoke", "extra"), "unrecognized arguments: extra"),
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
    result = run_captioner("caption", photo, "--checkpoint", tiny_file, "--max-pixels", 9599)
    assert result.returncode == 1
    assert "limit of 9,599: make it smaller, or raise the limit with --max-pixels" in result.stderr


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
    words = len(result.stdout.split())
    second = result.stdout.split()[1]
    assert result.stderr == f"{overlay} shows {second!r}, word 2 of {words}\n"
    assert result.returncode == 0
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
        "caption", photo, other, "--checkpoint", tiny_file,
        "--sheet", tmp_path / "new" / "{name}.png", "--overlay", tmp_path / "{number}" / "o.png",
        "--colors", "spotlight",
    )  # fmt: skip
    assert result.returncode == 0
    for name in ("new/photo.png", "new/other photo.png", "1/o.png", "2/o.png"):
        assert (tmp_path / name).exists()


def test_a_word_that_is_not_there(run_captioner: Run, tiny_file: Path, photo: Path) -> None:
    target = photo.with_name("o.png")
    result = run_captioner(
        "caption", photo, "--checkpoint", tiny_file, "--overlay", target, "--word", "zebra"
    )
    assert result.returncode == 1
    assert f"{photo}: --word zebra: there is no word 'zebra' in" in result.stderr
    assert result.stdout and not target.exists()  # the caption itself was made


@pytest.mark.parametrize("option", ["--overlay", "--sheet", "--animation"])
def test_no_photo_is_written_over(run_captioner: Run, tmp_path: Path, option: str) -> None:
    photo = tmp_path / "photo.webp"
    Image.new("RGB", (30, 20), "navy").save(photo)
    before = photo.read_bytes()
    link = tmp_path / "link.webp"
    link.symlink_to(photo)
    for target in (photo, link, tmp_path / "{name}.webp", tmp_path / "a" / ".." / "photo.webp"):
        (tmp_path / "a").mkdir(exist_ok=True)
        result = run_captioner("caption", photo, option, target)
        assert (result.returncode, result.stdout) == (2, "")
        assert f"{option} {target} would overwrite {photo}" in result.stderr
    assert photo.read_bytes() == before


def test_what_cannot_be_is_said_and_leaves_no_trace(photo: Path) -> None:
    folder = photo.parent
    odd = json.dumps({"format_version": FORMAT_VERSION, "generation": {"unknown": 1}})
    (folder / "odd.safetensors").write_bytes(save({"x": np.zeros(1)}, metadata={HEADER_KEY: odd}))
    os.mkfifo(folder / "pipe")
    lines = {
        f"caption {folder}/missing.jpg": (1, "missing.jpg cannot be read"),
        f"caption {folder}": (1, f"captioner batch {folder} --output captions.jsonl"),
        f"caption {photo} --checkpoint {folder}/missing": (1, "there is no checkpoint"),
        f"caption {photo} --checkpoint {photo}": (1, "not a safetensors file"),
        f"caption {photo} --checkpoint {folder}/odd.safetensors": (1, "cannot use"),
        f"caption {photo} --checkpoint {folder}/pipe": (1, "pipe is a pipe: write the checkpoint"),
        f"caption {photo} --checkpoint ~nobody-of-that-name/x": (1, "there is no checkpoint ~nobo"),
        f"caption {photo} --beam-size 21": (2, "--beam-size 21 is out of range"),
        f"caption {photo} --beam-size 3 --captions 4": (
            2,
            "it is at most --beam-size, 3: set --beam-size 4 too, or ask for fewer",
        ),
        f"caption {photo} --overlay {photo}": (2, "would overwrite"),
        f"caption {photo} --device quantum": (1, "'quantum' cannot be used here (no such kind"),
        f"caption {photo} --device cpu:x": (1, "'cpu:x' cannot be used here"),
        f"caption {photo} --dtype float8": (2, "--dtype 'float8' is not one of auto, float32"),
        f"train smoke --out {folder}/run --device quantum": (1, "no such kind of device"),
        f"evaluate --captions {photo} --images {folder} --device quantum": (1, "no such kind"),
    }
    before = sorted(folder.rglob("*"))
    for line, (status, _, said) in zip(lines, refuse(*lines), strict=True):
        wanted, words = lines[line]
        assert status == str(wanted) and words in said, said
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_loses_nothing_else(closed: str) -> None:
    """Shells and cron can start a command without them: Python then has None in their place."""
    for arguments, status in (("--version", 0), ("caption nowhere.jpg", 1)):
        line = f"{shlex.quote(sys.executable)} -m captioner {arguments} {closed}"
        result = subprocess.run(
            line, shell=True, capture_output=True, text=True, env=environment(), timeout=300
        )
        assert result.returncode == status
        assert "Traceback" not in result.stdout + result.stderr


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


def test_a_name_does_not_steer_the_terminal(run_captioner: Run) -> None:
    for name in ("a\x1b[2J\x9b5m\n.jpg", "b\x1b[2J\x9b5m.safetensors"):
        options = ("a.jpg", "--checkpoint", name) if name.startswith("b") else (name,)
        result = run_captioner("caption", *options)
        assert result.returncode == 1
        assert name[0] + r"\x1b[2J\x9b5m" in result.stderr
        assert "\x1b" not in result.stderr and "\x9b" not in result.stderr
        assert result.stderr.count("\n") == 1
