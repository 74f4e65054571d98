"""Ordinary JPEGs: which photos do not wait behind others."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image

from captioner_serving.decoding import photo as photo_module
from captioner_serving.decoding.photo import is_ordinary
from tests.launcher import ROOT


def photo_of(mode: str = "RGB", size: tuple[int, int] = (64, 48), **options: Any) -> bytes:
    Image.new(mode, size).save(buffer := io.BytesIO(), "JPEG", **options)
    return buffer.getvalue()


def commented(count: int) -> bytes:
    """A sound JPEG with so many empty comments."""
    return b"\xff\xd8" + b"\xff\xfe\0\2" * count + photo_of()[2:]


def test_photos_of_cameras_are_ordinary() -> None:
    """Also grey ones, large ones, and those with much metadata."""
    assert is_ordinary((ROOT / "assets/samples/coffee.jpg").read_bytes())
    assert is_ordinary(photo_of("L"))
    assert is_ordinary(photo_of(restart_marker_rows=1))
    assert is_ordinary(photo_of(size=(6000, 5000)))
    assert is_ordinary(photo_of(exif=b"Exif\0\0" + bytes(60_000), icc_profile=bytes(3_000_000)))


@pytest.mark.parametrize(
    "data",
    [
        photo_of(progressive=True),
        photo_of("CMYK"),  # its profile may take seconds
        photo_of(size=(6001, 5000)),
        photo_of()[:100],
        commented(2000),
        photo_of(exif=b"Exif\0\0" + bytes(60_000), icc_profile=bytes(5_000_000)),
        b"\x89PNG\r\n\x1a\n",
        b"",
    ],
    ids=["progressive", "inks", "huge", "cut off", "many segments", "metadata", "PNG", "empty"],
)
def test_what_may_take_longer_is_not_ordinary(data: bytes) -> None:
    assert not is_ordinary(data)


def test_only_the_beginning_of_the_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens where all requests are served; 19 MB of segments would take a second and more."""
    seen: list[object] = []
    walk = photo_module.segments
    monkeypatch.setattr(
        photo_module, "segments", lambda data: (seen.append(part) or part for part in walk(data))
    )
    assert not is_ordinary(commented(100_000))
    assert len(seen) <= 1001
