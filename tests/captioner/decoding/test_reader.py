"""How Captioner opens files: in a process of its own, with limits."""

from __future__ import annotations

import gc
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops

from captioner import (
    Captioner,
    ImageError,
    ImageNotFoundError,
    ImageTooLargeError,
)
from captioner.decoding.decoded import Decoded, EncodedPhoto
from captioner.decoding.prepared import PreparedImage
from captioner.decoding.reader import Reader
from captioner.vision.image import open_image
from captioner.vision.transform import Box
from tests.captioner import bombs
from tests.launcher import Run, environment
from tests.process_tree import children


def test_what_is_open_already_starts_no_process_and_files_start_one(
    saved_tiny: Path, photo: Path
) -> None:
    captioner = Captioner.from_pretrained(saved_tiny)
    before = set(children(os.getpid()))
    with Image.open(photo) as image:
        captioner.caption([image, np.asarray(image)])
    assert set(children(os.getpid())) == before
    captioner.caption([photo, photo.read_bytes(), io.BytesIO(photo.read_bytes())])
    (process,) = set(children(os.getpid())) - before
    os.kill(process, signal.SIGKILL)
    assert captioner.caption(photo).text  # another takes its place
    del captioner
    gc.collect()
    assert set(children(os.getpid())) == before


def test_a_photo_has_a_limit_of_time(saved_tiny: Path, tmp_path: Path, run_main: Run) -> None:
    large = tmp_path / "large.png"
    Image.new("RGB", (4000, 4000)).save(large)
    said = f"{large} takes more than 0.001 s to decode: export it again, smaller"
    with pytest.raises(ImageTooLargeError, match=re.escape(said)):
        Captioner.from_pretrained(saved_tiny, seconds=1e-3).caption(large)
    done = run_main("caption", large, "--checkpoint", saved_tiny, "--seconds", "0.001")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"captioner: {said}\n")


def test_in_this_process_it_is_the_same(
    saved_tiny: Path, captioner: Captioner, photo: Path
) -> None:
    here = Captioner.from_pretrained(saved_tiny, in_process=True)
    before = set(children(os.getpid()))
    ours, theirs = here.caption(photo), captioner.caption(photo)
    assert ours.record(attention=True) == theirs.record(attention=True)
    assert not ImageChops.difference(ours.open_photo(), theirs.open_photo()).getbbox()
    assert len(set(children(os.getpid())) - before) <= 1
    bad = photo.with_name("bad.jpg")
    for data in (photo.read_bytes()[:300], b"", b"text", bombs.comments()):
        bad.write_bytes(data)
        said = [one.caption([bad], errors="return")[0] for one in (here, captioner)]
        assert isinstance(said[0], ImageError)
        assert said[0].record() == said[1].record()


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_every_door_has_the_same_square(format: str, captioner: Captioner, tmp_path: Path) -> None:
    """Twelve times the square, but for a pixel; larger JPEGs may be decoded smaller."""
    noise = Image.effect_noise((200, 150), 90).resize((1600, 1151), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    noise.convert("RGB").save(path := tmp_path / f"photo.{format}", format, exif=exif)
    data = path.read_bytes()
    with Image.open(path) as opened, Image.open(path) as loaded:
        loaded.load()
        sources = (path, str(path), data, io.BytesIO(data), opened, loaded, opened)
        squares = [captioner.prepare(source) for source in sources]
    with Reader(captioner.transform.config, quick=1) as reader:  # as server and batch
        squares.append(PreparedImage.of(reader.submit(EncodedPhoto("", data)).result()))
    assert all(
        np.array_equal(one.pixels, squares[0].pixels) and one.box == squares[0].box
        for one in squares
    )


def test_a_large_jpeg_is_the_same_open_and_closed(captioner: Captioner) -> None:
    noise = Image.effect_noise((200, 150), 90).resize((3200, 2400), Image.Resampling.BICUBIC)
    noise.save(buffer := io.BytesIO(), "JPEG")
    with Image.open(buffer) as opened:
        before = buffer.tell()
        square = captioner.prepare(opened).pixels
        assert np.array_equal(square, captioner.prepare(buffer.getvalue()).pixels)
        assert opened.tile and buffer.tell() == before, "it is left as it was"
        opened.load()
        assert np.abs(captioner.prepare(opened).pixels.astype(float) - square).mean() < 1


def test_pictures_outlive_the_captioner(saved_tiny: Path, photo: Path) -> None:
    caption = Captioner.from_pretrained(saved_tiny).caption(photo)
    gc.collect()
    assert caption.overlay(1).size == (120, 80)
    assert pickle.loads(pickle.dumps(caption)).overlay(1).size == (120, 80)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_fork_has_a_process_of_its_own(captioner: Captioner, photo: Path) -> None:
    assert captioner.prepare(photo).box == Box(0, 0, 1, 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if captioner.prepare(photo).pixels.any() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert captioner.prepare(photo).pixels.any()


SCRIPT = """
import os, sys, time
from captioner.decoding.reader import Reader
from captioner.vision.transform import TransformConfig
reader = Reader(TransformConfig(size=32))
reader.read(sys.argv[1])
from tests.process_tree import children
(decoding,) = children(os.getpid())
fork = os.fork()
if fork == 0:
    time.sleep(3600)
print(decoding, fork, flush=True)
time.sleep(3600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_process_ends_with_its_parent_and_not_with_a_fork_of_it(photo: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, photo]
    with subprocess.Popen(
        command, env=environment(PYTHONWARNINGS="ignore"), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        decoding, fork = map(int, parent.stdout.readline().split())
        parent.kill()
    try:
        while Path(f"/proc/{decoding}/exe").exists():  # or the limit of the whole test ends it
            time.sleep(0.01)
        assert Path(f"/proc/{fork}/exe").exists()
    finally:
        os.kill(fork, signal.SIGKILL)


def test_what_is_no_plain_file_is_read_too(captioner: Captioner, photo: Path) -> None:
    """As with `captioner caption <(curl ...)`."""
    reading, writing = os.pipe()
    os.write(writing, photo.read_bytes())
    os.close(writing)
    assert captioner.prepare(f"/dev/fd/{reading}").box == Box(0, 0, 1, 1)
    os.close(reading)


def test_a_photo_that_was_not_kept_is_no_file_of_that_name(
    captioner: Captioner, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photo.parent)
    photo.rename("the image")
    square = captioner.transform.square(open_image("the image"))
    decoded = Decoded(b"", (120, 80), square.tobytes(), square.size, Box(0, 0, 1, 1))
    (caption,) = captioner.caption_prepared([PreparedImage.of(decoded, image="the image")])
    with pytest.raises(ImageNotFoundError, match="not kept"):
        caption.overlay(1)
