"""The command as people run it: a process, its output, its exit status."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import webbrowser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from captioner import __version__
from captioner.captioner import Captioner
from captioner.checkpoint import FORMAT_VERSION
from captioner.cli import VERBS, main
from captioner.shared.files import HEADER_KEY
from tests.launcher import Run, environment, start
from tests.refusals import Refusals, check_refusals
from tests.write_help import FILE, list_options, read_help


def test_help_is_short_has_examples_imports_no_torch_and_the_listed_options() -> None:
    texts = read_help()
    for verb in VERBS:
        text, state = texts[verb]
        assert state == "0 False"
        assert f"captioner {verb} " in text.split("examples:")[1]
        assert len(text.splitlines()) < 64
    assert list_options(texts) == FILE.read_text(), "run `python -m tests.write_help`, see the diff"


def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback() -> None:
    script = (
        "import os, runpy, signal, sys\n"
        "class Hook:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'captioner.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Hook())\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "runpy.run_module('captioner', run_name='__main__')"
    )
    command = [sys.executable, "-c", script, "--version"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


def test_wrong_usage_is_a_sentence(
    run_main: Run, tiny_file: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2 for an invalid command, 1 for a missing file."""
    monkeypatch.chdir(tmp_path)
    odd = json.dumps({"format_version": FORMAT_VERSION, "generation": {"unknown": 1}})
    Path("odd.safetensors").write_bytes(save({"x": np.zeros(1)}, metadata={HEADER_KEY: odd}))
    os.mkfifo("pipe")
    name, tiny = photo.name, f"--checkpoint {tiny_file.name}"
    refused: Refusals = {
        "": (2, "usage: captioner"),
        "shout": (2, "invalid choice: 'shout'"),
        "caption": (2, "PHOTO"),
        f"caption {name} --overley x": (2, "did you mean --overlay?"),
        "capton": (2, "did you mean caption?"),
        f"caption {name} --attention": (2, "--attention needs --json"),
        f"caption {name} --minimum-trust 2": (2, "--minimum-trust: 2 is not between 0 and 1"),
        f"caption {name} --word dog": (2, "--word needs --overlay"),
        f"caption {name} b.jpg --sheet s.png": (2, "use {number}, which is different"),
        f"caption {name} --colors viridis": (2, "--colors needs one of --sheet"),
        f"caption {name} --show": (2, "--show needs a terminal"),
        f"caption {name} --sheet s.tiff": (2, ".png"),
        f"caption {name} --animation a.mp4": (2, ".gif"),
        f"caption {name} --sheet {{x}}.png": (2, "use the fields {name} and {number}"),
        f"caption {name} --overlay {name}": (2, "would overwrite"),
        f"caption {name} {tiny} --beam-size 0": (2, "captioner: beam_size 0 is out of range"),
        f"caption {name} {tiny} --beam-size 5 --captions 9": (2, "set beam_size 9 too"),
        f"caption {name} {tiny} --max-pixels 0": (2, "max_pixels is 0; it must be at least 1"),
        f"caption {name} {tiny} --max-pixels 9599": (1, "limit of 9,599"),
        f"caption {name} {tiny} --sheet s.png --head 2": (2, "head 2: the model tiny has one head"),
        f"caption {name} {tiny} --dtype float8": (2, "dtype 'float8' is not one of auto, float"),
        f"caption {name} {tiny} --device quantum": (1, "device 'quantum' cannot be used here"),
        f"caption {tiny} missing.jpg": (1, "missing.jpg cannot be read"),
        f"caption {tiny} . --sheet a/{{name}}.png": (1, "captioner batch . --output captions"),
        f"caption {name} --checkpoint missing": (1, "there is no checkpoint missing"),
        f"caption {name} --checkpoint odd.safetensors": (1, "cannot use"),
        f"caption {name} --checkpoint pipe": (1, "pipe is a pipe: write the checkpoint"),
        f"caption {name} --checkpoint ~nobody-of-that-name/x": (1, "there is no checkpoint ~nobo"),
        "train nonsense": (2, "there is no recipe 'nonsense'"),
        "train smoke --stages.1.learning-rate x": (2, "stages.1.learning_rate: should be a valid"),
    }
    check_refusals(run_main, refused, tmp_path)


def test_the_sheet_is_opened(
    run_main: Run, tiny_file: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's viewer is replaced by a program that records the file."""
    (opener := tmp_path / "opener").write_text('#!/bin/sh\nprintf %s "$1" > "$0.txt"\n')
    opener.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(opener))
    for name in ("_tryorder", "_browsers"):  # what was found for an earlier test
        monkeypatch.setattr(webbrowser, name, None if name == "_tryorder" else {})
    command = ("caption", photo, "--checkpoint", tiny_file, "--open")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for options in ((), ("--sheet", sheet := tmp_path / "sheet.png")):
        result = run_main(*command, *options)
        assert (result.returncode, result.stderr) == (0, "")
        opened = Path(opener.with_suffix(".txt").read_text().removeprefix("file://"))
        assert opened.stat().st_size > 1000 and tmp_path in opened.parents
    assert opened == sheet
    opener.write_text("#!/bin/sh\nexit 1\n")
    result = run_main(*command, "--sheet", sheet)
    assert result.returncode == 1 and f"that opens {sheet}" in result.stderr


def test_a_word_is_drawn_in_the_terminal(tiny_file: Path, photo: Path) -> None:
    """In one that draws no pictures: in halves of cells, as wide as it is."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 60))
    variables = {**environment(), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    del variables["PYTHONWARNINGS"]  # the library calls what Pillow gives up in 2027
    for name in ("COLUMNS", "LINES"):  # of the terminal that the tests run in
        variables.pop(name, None)
    line = ("caption", photo, "--show", "--word", 1, "--checkpoint", tiny_file)
    process = start(*line, stdin=its, stdout=its, env=variables)
    os.close(its)
    drawn = b""
    try:
        while piece := os.read(ours, 65536):
            drawn += piece
    except OSError:  # what a terminal gives at the end
        pass
    _, said = process.communicate()
    os.close(ours)
    assert process.returncode == 0 and "the picture shows" in said, said
    rows = [line for line in drawn.decode().splitlines() if "▀" in line]
    assert len(rows) > 5 and max(row.count("▀") for row in rows) <= 60
    assert "\x1b[38;2;" in rows[0]


def test_many_photos_and_one_bad_one(
    run_main: Run, tiny_file: Path, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(photo.read_bytes()[:200])
    alone = run_main("caption", photo, "--checkpoint", tiny_file)
    assert (alone.returncode, alone.stderr) == (0, "") and str(photo) not in alone.stdout
    # The third photo is in the second batch.
    monkeypatch.setattr("captioner.captioner.Captioner.batch_size", 2)
    result = run_main("caption", photo, bad, photo, "--checkpoint", tiny_file)
    assert result.returncode == 1
    assert result.stdout == f"{photo}\t{alone.stdout}" * 2
    assert result.stderr.startswith(f"captioner: {bad}")
    assert len(result.stderr.splitlines()) == 1


def test_photos_are_decoded_while_the_model_works(
    tiny_file: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model waits with the second batch until the photo of the third is opened."""
    last, is_open, waited = str(photo.with_name("last.jpg")), threading.Event(), []
    prepare, generate = Captioner.prepare, Captioner.caption_prepared

    def opening(self: Captioner, image: Any, **options: Any) -> Any:
        if str(image) == last:
            is_open.set()
        return prepare(self, image, **options)

    def waiting(self: Captioner, *images: Any, **options: Any) -> Any:
        waited.append(not waited or is_open.wait(60))
        return generate(self, *images, **options)

    Path(last).write_bytes(photo.read_bytes())
    monkeypatch.setattr(Captioner, "batch_size", 2)
    monkeypatch.setattr(Captioner, "prepare", opening)
    monkeypatch.setattr(Captioner, "caption_prepared", waiting)
    assert main(["caption", *[str(photo)] * 4, last, "--checkpoint", str(tiny_file)]) == 0
    assert waited == [True, True, True]


def test_json_records(run_main: Run, tiny_file: Path, photo: Path) -> None:
    missing = photo.parent / "missing.jpg"
    result = run_main(
        "caption", photo, missing, "--json", "--captions", 2, "--checkpoint", tiny_file
    )
    assert result.returncode == 1
    caption, error = map(json.loads, result.stdout.splitlines())
    assert caption["image"] == str(photo) and len(caption["alternatives"]) == 1
    assert "attention" not in caption["words"][0] and error["image"] == str(missing)
    assert error["error"]["type"] == "image-not-found"
    assert str(missing) in error["error"]["detail"]
    plain = run_main("caption", photo, "--captions", 2, "--checkpoint", tiny_file)
    assert plain.stdout.splitlines() == [
        caption["caption"], caption["alternatives"][0]["caption"]
    ]  # fmt: skip


def test_a_photo_comes_by_standard_input(
    run_captioner: Run, tiny_file: Path, photo: Path, tmp_path: Path
) -> None:
    (name := tmp_path / "sheets").mkdir()
    sheet = f"{name}/{{name}}.png"
    with photo.open("rb") as file:
        line = ("caption", "-", "--json", "--checkpoint", tiny_file, "--sheet", sheet)
        result = run_captioner(*line, stdin=file)
    assert json.loads(result.stdout)["image"] == "-" and (name / "photo.png").exists()
    alone = run_captioner("caption", photo, "--json", "--checkpoint", tiny_file)
    assert json.loads(alone.stdout)["caption"] == json.loads(result.stdout)["caption"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("--version >&-", 0, ""),
        ("caption a.jpg --attention >&- 2>&-", 2, ""),
        # Little output, which is written when the command ends.
        ("train finetune --show >/dev/full", 1, "cannot be written: the disk is full\n"),
        ("--version", 0, ""),
    ],
)
def test_closed_and_full_standard_streams_cause_no_traceback(
    arguments: str, status: int, message: str
) -> None:
    """Shells and cron can start a command without them: Python then has None in their place."""
    line = f"{shlex.quote(sys.executable)} -m captioner {arguments}"
    buffered = environment(PYTHONUNBUFFERED="")
    result = subprocess.run(line, shell=True, capture_output=True, text=True, env=buffered)
    assert result.returncode == status
    assert "Traceback" not in result.stdout + result.stderr
    assert result.stderr.endswith(message)
    assert result.stdout == ("" if ">" in arguments else f"captioner {__version__}\n")


def test_a_closed_pipe_ends_the_command_silently(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in `captioner train finetune --show | head -1`."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["train", "finetune", "--show"]) == 1
    assert capfd.readouterr().err == ""


def test_file_names_that_are_not_utf8(
    run_main: Run, tiny_file: Path, photo: Path, tmp_path: Path
) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9\nnew 'line'.jpg"
    with open(odd, "wb") as file:  # noqa: PTH123  # pathlib has no bytes paths
        file.write(photo.read_bytes())
    name = os.fsdecode(odd)
    result = run_main("caption", name, "--json", "--checkpoint", tiny_file)
    assert (result.returncode, result.stderr) == (0, "")
    record = json.loads(result.stdout)
    assert record["image"] == name
    result = run_main("caption", name, name, "--checkpoint", tiny_file)
    assert result.stdout == f"{name}\t{record['caption']}\n" * 2  # as it is: no terminal


def test_control_characters_in_file_names_are_escaped(run_main: Run) -> None:
    for name in ("a\x1b[2J\x9b5m\u202e\u2067\t\n.jpg", "b\x1b[2J\x9b5m\u202e\u2067\t.safetensors"):
        options = ("a.jpg", "--checkpoint", name) if name.startswith("b") else (name,)
        result = run_main("caption", *options)
        assert result.returncode == 1
        assert name[0] + r"\x1b[2J\x9b5m\u202e\u2067\t" in result.stderr
        assert "\x1b" not in result.stderr and "\x9b" not in result.stderr
        assert result.stderr.count("\n") == 1
