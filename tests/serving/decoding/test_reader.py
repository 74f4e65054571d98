"""How server and batch open files: in processes of their own, with limits."""

from __future__ import annotations

import gc
import io
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from captioner import Captioner, ImageError
from captioner.photos.transform import TransformConfig
from captioner_serving.decoding import photo as decoding_photo
from captioner_serving.decoding.photo import Decoded, EncodedPhoto, Square, is_ordinary
from captioner_serving.decoding.pool import Reader
from tests.captioner import bombs
from tests.captioner.pictures import encode
from tests.launcher import ROOT
from tests.process_tree import children


def decode(reader: Reader, photo: Path) -> Decoded:
    return decode_bytes(reader, photo.read_bytes(), photo.name)


def decode_bytes(reader: Reader, data: bytes, name: str = "") -> Decoded:
    (decoded,) = reader.produce(EncodedPhoto(name, data), [Square(reader._transform)]).result()
    return decoded


def test_a_killed_process_is_replaced_and_ends_with_its_reader(photo: Path) -> None:
    before = set(children(os.getpid()))
    reader = Reader(TransformConfig(size=32))
    assert decode(reader, photo).size == (120, 80)
    (process,) = set(children(os.getpid())) - before
    os.kill(process, signal.SIGKILL)
    assert decode(reader, photo).size == (120, 80)
    del reader
    gc.collect()
    assert set(children(os.getpid())) == before


def test_errors_are_those_of_the_library(captioner: Captioner, photo: Path) -> None:
    bad = photo.with_name("bad.jpg")
    with Reader(captioner.transform.config) as reader:
        for data in (photo.read_bytes()[:300], b"", b"text", bombs.comments()):
            bad.write_bytes(data)
            (error,) = captioner.caption([bad], errors="return")
            assert isinstance(error, ImageError)
            assert decode_bytes(reader, data, str(bad)).error == error.record()


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_every_kind_of_source_gives_the_same_square(
    format: str, captioner: Captioner, tmp_path: Path
) -> None:
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
        squares.append(decode_bytes(reader, data).prepared())
    assert all(
        np.array_equal(one.pixels, squares[0].pixels) and one.box == squares[0].box
        for one in squares
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
def test_a_fork_starts_a_separate_decoding_process(photo: Path) -> None:
    with Reader(TransformConfig(size=32)) as reader:
        assert decode(reader, photo).size == (120, 80)
        child = os.fork()
        if child == 0:
            os._exit(0 if any(decode(reader, photo).pixels) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert any(decode(reader, photo).pixels)


def photo_of(mode: str = "RGB", size: tuple[int, int] = (64, 48), **options: Any) -> bytes:
    return encode(Image.new(mode, size), "JPEG", **options)


def commented(count: int) -> bytes:
    """A sound JPEG with so many empty comments."""
    return b"\xff\xd8" + b"\xff\xfe\0\2" * count + photo_of()[2:]


def test_photos_of_cameras_are_ordinary_and_what_may_take_longer_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the beginning is read: all requests wait, and 19 MB of segments would take a second."""
    exif = b"Exif\0\0" + bytes(60_000)
    for data in (
        (ROOT / "assets/samples/coffee.jpg").read_bytes(),
        photo_of("L"),
        photo_of(size=(6000, 5000)),
        photo_of(exif=exif, icc_profile=bytes(3_000_000)),
    ):
        assert is_ordinary(data), data[:99]
    seen: list[object] = []
    walk = decoding_photo.segments
    monkeypatch.setattr(
        decoding_photo, "segments", lambda data: (seen.append(part) or part for part in walk(data))
    )
    for data in (
        photo_of(progressive=True),
        photo_of("CMYK"),  # its profile may take seconds
        photo_of(size=(6001, 5000)),
        photo_of()[:100],
        photo_of(exif=exif, icc_profile=bytes(5_000_000)),
        b"\x89PNG\r\n\x1a\n",
        commented(100_000),
    ):
        seen.clear()
        assert not is_ordinary(data) and len(seen) <= 1001, data[:99]
