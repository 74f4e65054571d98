"""Fixtures for batch captioning: photos by the dozen, and the tiny model from Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw
from torch import nn

from captioner import Captioner
from captioner.checkpoint import load_checkpoint
from captioner.photos.transform import Transform
from captioner_serving.batch.files import RunFiles, size_of
from captioner_serving.batch.journal import Journal
from tests import launcher
from tests.launcher import environment
from tests.serving.server.running import until

Records = list[dict[str, Any]]
Photos = Callable[..., Path]
Start = Callable[..., subprocess.Popen[str]]


def draw(number: int, size: tuple[int, int] = (60, 40)) -> Image.Image:
    """A photo that no other number has."""
    image = Image.new("RGB", size, (number * 37 % 256, number * 91 % 256, number * 53 % 256))
    box = (5 + number % 20, 5, 30 + number % 20, 30)
    ImageDraw.Draw(image).ellipse(box, fill=(number % 256, 255 - number % 256, number // 256))
    return image


def record_of(image: object, caption: str = "a man and a dog", **more: Any) -> dict[str, Any]:
    """Make a record as `captioner batch` writes it."""
    return {
        "image": str(image),
        "caption": caption,
        "score": -0.5,
        "words": [],
        "alternatives": [{"caption": "the man", "score": -0.75}],
        "model": {"name": "tiny", "version": "1"},
        **more,
    }


def write_lines(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_run(output: Path, *records: dict[str, Any]) -> None:
    """Write an output as a run does that captions these photos; another call resumes it."""
    with Journal(RunFiles(output), {}) as journal:
        for record in records:
            journal.add(record)
        journal.commit()
        journal.finish()


def read_lines(path: Path) -> Records:
    return [json.loads(line) for line in path.read_text().splitlines()]


def await_records(process: subprocess.Popen[str], output: Path) -> None:
    """Wait until a run has written its first record."""
    assert until(lambda: process.poll() is not None or size_of(output))
    assert process.poll() is None, process.communicate()


def exiftool(*arguments: object) -> str:
    command = ["exiftool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def read_tags(*paths: Path) -> Records:
    """All XMP and IPTC tags of each file as exiftool reads them."""
    tags: Records = json.loads(exiftool("-json", "-G1", "-XMP:all", "-IPTC:all", *paths))
    return tags


@pytest.fixture
def photos(tmp_path: Path) -> Photos:
    """Make a folder of so many photos, p000.jpg and on."""

    def make(count: int, *, name: str = "photos", first: int = 0) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for number in range(first, first + count):
            draw(number).save(folder / f"p{number:03}.jpg", quality=90)
        return folder

    return make


@pytest.fixture(scope="session")
def lively_file(saved_tiny: Path) -> Path:
    """The tiny model with an encoder that gives different captions for different photos."""
    checkpoint = load_checkpoint(saved_tiny)
    encoder = checkpoint.model.encoder
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.train()
        norm.momentum = None  # the mean over all that it sees
    transform = Transform(checkpoint.transform)
    with torch.no_grad():
        encoder(transform.normalize(torch.stack([transform.pixels(draw(n)) for n in range(64)])))
    path = saved_tiny.with_name("lively.safetensors")
    checkpoint.save(path)
    return path


@pytest.fixture(scope="session")
def tiny(lively_file: Path) -> Captioner:
    """The model of the command, for calls from Python."""
    return Captioner.from_pretrained(lively_file, dtype="float32")


@pytest.fixture
def start_batch(lively_file: Path) -> Start:
    """Start `captioner batch` with the tiny model and do not wait for it."""

    def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        more = options.pop("environment", {})
        options = {"stdin": subprocess.DEVNULL, "env": environment(**more), **options}
        model = ("--checkpoint", lively_file, "--dtype", "float32")
        return launcher.start("batch", *arguments, *model, **options)

    return start


@pytest.fixture
def run_batch(
    run_main: launcher.Run, lively_file: Path, tiny: Captioner, monkeypatch: pytest.MonkeyPatch
) -> launcher.Run:
    """Run `captioner batch` with the tiny model, loaded but once, in the test's own process."""
    load = Captioner.from_pretrained

    def loaded(
        path: Any, *, device: str = "auto", dtype: str = "auto", **options: Any
    ) -> Captioner:
        usual = (path, device, dtype) == (str(lively_file), "auto", "auto")
        return tiny if usual else load(path, device=device, dtype=dtype, **options)

    monkeypatch.setattr(Captioner, "from_pretrained", loaded)
    monkeypatch.setattr("captioner_serving.commands.batch.signal.signal", lambda *_: None)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        given = () if "--checkpoint" in arguments else ("--checkpoint", lively_file)
        return run_main("batch", *arguments, *given)

    return run
