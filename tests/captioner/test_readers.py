"""`captioner.readers`: files whose headers ask for more than a photo may cost, and HEIC."""

from __future__ import annotations

import base64
import io
import struct

import pytest
from PIL import ImageChops, ImageStat

from captioner.errors import ImageError, ImageFormatError, ImageTooLargeError
from captioner.image import open_image
from captioner.readers import MAX_SCANS
from tests.captioner.pictures import draw

# Drawn as `draw` does, stored on its side and turned back; written by pillow-heif 1.8.1, whose
# encoder is no dependency of this project.
HEIC = base64.b64decode("""
AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAchtZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAA
AAAAADRpbG9jAAAAAERAAAIAAQAAAAAB7AABAAAAAAAAAbAAAgAAAAADnAABAAAAAAAAACQAAAA4aWluZgAAAAAAAgAAABVp
bmZlAgAAAAABAABodmMxAAAAABVpbmZlAgAAAQACAABFeGlmAAAAAA5waXRtAAAAAAABAAABB2lwcnAAAADmaXBjbwAAAHZo
dmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMAAAMAHroCQGEAAQAqQgEBA3AAAAMAkAAA
AwAAAwAeoCCBBZbq5Ka5uAhoMCAAAAMDIAAAAwAhYgABAAZEAcFzwIkAAAATY29scm5jbHgAAQANAAaAAAAAFGlzcGUAAAAA
AAAAQAAAAEAAAAAoY2xhcAAAADAAAAABAAAAQAAAAAH////wAAAAAgAAAAAAAAACAAAAEHBpeGkAAAAAAwgICAAAAAlpcm90
AwAAABlpcG1hAAAAAAAAAAEAAQaBAgMFhIYAAAAaaXJlZgAAAAAAAAAOY2RzYwACAAEAAQAAAdxtZGF0AAABrCgBrwT4m0Fd
2bTCnIUuEOQGnPLHxuELpjCD+2pC+w6dFTbcJ+nYnX0Lt/22/Gn3AFZfK6nrUjPOz3MpYimHcfDR5z0OCavmIaUkIQb/KsPg
/dYyywwSJxbVMbWgHiRzyJQ0v4C7z7BDhX9m3gvuX4sbM8qeVaKyMNIyZFZi+GbcxmRmdB/C69t61DQ0lWiSi9+7Q9Jv8b7b
QAA8/H8Xt6D/o6LxmTm0rLCPP3noH3k+5avlXxjyn1DXVAKBhz3epXpAjlARyl81l86BjPmvS8BCzueA5gUjfciYPIulBUD1
T7E9BCBaOIIf37G5dav2FC11JIL+FI1pUJfqTHgvaPvomxBFlPgG3vYwLiB7Hd8o2RsiL/u8X/0QNsKXTE+clVVFDp9Mn/zW
j+y/fhVZhBSjOTUZZ0U6M0RRHtkvU7ezv/e+8vRM2KQycotdFHnSHJH/F5ruh7Jq1sfe/As7l6MWRDKX1obuKv5/Id4oDpzG
SDvGQ73upVBC1NMbiF0H0oB7ICY5fN5LGk6LMvCmBBWttks8EVATXCYhs6q/f+ntFPdMthWob/cYHA3AAAAABkV4aWYAAE1N
ACoAAAAIAAEBEgADAAAAAQAGAAAAAAAA
""")


def jpeg(scans: int, side: int = 64) -> bytes:
    """A progressive JPEG whose last scan comes so many times more."""
    image = draw(side, side)
    image.save(buffer := io.BytesIO(), "JPEG", progressive=True, quality=90)
    data = buffer.getvalue()
    begin = data.rindex(b"\xff\xda")
    return data[:begin] + data[begin:-2] * (1 + scans) + b"\xff\xd9"


def tiff(*, tile: tuple[int, int]) -> bytes:
    """A TIFF of 64 x 64 pixels in compressed tiles of any size."""
    tags = ((256, 64), (257, 64), (258, 8), (259, 5), (262, 1), (277, 1), (322, tile[0]),
            (323, tile[1]), (324, 300), (325, 300))  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(1000)


def test_heic_is_the_picture_that_the_phone_shows() -> None:
    picture = open_image(HEIC)
    assert (picture.size, picture.mode) == ((64, 48), "RGB")
    assert sum(ImageStat.Stat(ImageChops.difference(picture, draw())).mean) / 3 < 4
    with pytest.raises(ImageTooLargeError, match="64 x 48 pixels"):
        open_image(HEIC, max_pixels=1000)


def test_heic_cut_or_damaged_anywhere_is_an_image_or_an_image_error() -> None:
    for position in range(0, len(HEIC), 7):
        damaged = HEIC[:position] + b"\xff" + HEIC[position + 1 :]
        for data in (HEIC[:position], damaged):
            try:
                open_image(data)
            except ImageError as error:
                assert "the image" in str(error)


def test_the_error_that_lists_the_formats_names_heic() -> None:
    with pytest.raises(ImageFormatError, match="AVIF, HEIC, BMP"):
        open_image(b"a letter to a friend")


def test_a_jpeg_that_repeats_its_last_scan_is_refused() -> None:
    data = jpeg(400_000 // 1000, 1000)
    with pytest.raises(ImageTooLargeError, match=rf"\d+ scans, more than the limit of {MAX_SCANS}"):
        open_image(data)
    # As decoders count: what progressive files have by themselves, and a little more, is read.
    assert open_image(jpeg(MAX_SCANS - 20)).size == (64, 64)


def test_scans_in_metadata_and_behind_the_picture_do_not_count() -> None:
    data = jpeg(0)
    noise = b"\xff\xda" * 1000
    in_metadata = data[:2] + b"\xff\xe5" + struct.pack(">H", len(noise) + 2) + noise + data[2:]
    for odd in (in_metadata, data + noise):
        assert open_image(odd).tobytes() == open_image(data).tobytes()


@pytest.mark.parametrize("tile", [(32768, 65504), (1 << 31, 16), (16, 1 << 31)])
def test_a_tiff_with_tiles_larger_than_any_photo_is_refused(tile: tuple[int, int]) -> None:
    with pytest.raises(ImageTooLargeError, match=f"tiles of {tile[0]} x {tile[1]} pixels"):
        open_image(tiff(tile=tile))


def test_a_tile_may_be_larger_than_a_small_picture() -> None:
    with pytest.raises(ImageError, match="cut off or damaged"):  # and not too large
        open_image(tiff(tile=(512, 512)), max_pixels=64 * 64)
