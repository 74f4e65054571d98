"""Which photos are decoded in a time that their header tells."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from captioner.decoding import reader
from captioner.decoding.reader import is_ordinary

SAMPLES = Path(__file__).parents[3] / "assets" / "samples"


def jpeg(mode: str = "RGB", size: tuple[int, int] = (64, 48), **options: Any) -> bytes:
    Image.new(mode, size).save(buffer := io.BytesIO(), "JPEG", **options)
    return buffer.getvalue()


def segments(count: int) -> bytes:
    """A sound JPEG with so many empty comments."""
    return b"\xff\xd8" + b"\xff\xfe\0\2" * count + jpeg()[2:]


@pytest.mark.parametrize("name", ["coffee.jpg", "rocket.jpg"])
def test_photos_of_cameras_are_ordinary(name: str) -> None:
    assert is_ordinary((SAMPLES / name).read_bytes())


def test_so_are_grey_ones_large_ones_and_those_with_much_to_say() -> None:
    assert is_ordinary(jpeg("L"))
    assert is_ordinary(jpeg(size=(6000, 5000)))
    assert is_ordinary(jpeg(exif=b"Exif\0\0" + bytes(60_000), icc_profile=bytes(3_000_000)))


@pytest.mark.parametrize(
    "data",
    [
        jpeg(progressive=True),
        jpeg("CMYK"),  # its profile may take seconds
        jpeg(size=(6001, 5000)),
        jpeg()[:100],
        segments(2000),
        jpeg(exif=b"Exif\0\0" + bytes(60_000), icc_profile=bytes(5_000_000)),
        b"\x89PNG\r\n\x1a\n",
        b"",
    ],
    ids=["progressive", "inks", "huge", "cut off", "many segments", "metadata", "PNG", "empty"],
)
def test_what_may_take_longer_is_not(data: bytes) -> None:
    assert not is_ordinary(data)


def test_it_is_told_from_the_beginning_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens where all requests are served; 19 MB of segments would take a second and more."""
    seen: list[object] = []
    walk = reader.segments
    monkeypatch.setattr(
        reader, "segments", lambda data: (seen.append(one) or one for one in walk(data))
    )
    assert not is_ordinary(segments(100_000))
    assert len(seen) <= 1001
