"""Files whose headers claim too much memory or time, and HEIC."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageStat

from captioner.errors import ImageError, ImageTooLargeError
from captioner.photos.formats import MAX_SCANS
from captioner.photos.open import open_image
from tests.captioner import bombs
from tests.captioner.pictures import HEIC, draw, encode, tiff
from tests.launcher import environment


def jpeg(scans: int, side: int = 64) -> bytes:
    """A progressive JPEG whose last scan comes so many times more."""
    data = encode(draw(side, side), "JPEG", progressive=True, quality=90)
    begin = data.rindex(b"\xff\xda")
    return data[:begin] + data[begin:-2] * (1 + scans) + b"\xff\xd9"


def tiled(tile: tuple[int, int], *, big: bool = False) -> bytes:
    """A TIFF, or a BigTIFF with numbers of 8 bytes, of 64 x 64 pixels in tiles of any size."""
    kind = 16 if big else 4
    tags = ((322, kind, [tile[0]]), (323, kind, [tile[1]]), (324, 4, [8]), (325, 4, [300]))
    return tiff(np.zeros((64, 64), np.uint8), order="<", big=big, compression=5, more=tags)


def test_heic_is_the_picture_that_the_phone_shows() -> None:
    picture = open_image(HEIC)
    assert (picture.size, picture.mode) == ((64, 48), "RGB")
    assert sum(ImageStat.Stat(ImageChops.difference(picture, draw())).mean) / 3 < 4
    with pytest.raises(ImageTooLargeError, match="64 x 48 pixels"):
        open_image(HEIC, max_pixels=1000)


def test_heic_and_avif_of_other_brands() -> None:
    """The first brand may be that of any HEIF file, as in photos from some phones."""
    own = b"heic\0\0\0\0mif1heic"
    others = [b"mif1\0\0\0\0mif1heic", b"msf1\0\0\0\0heicmif1", b"hevc\0\0\0\0mif1heic"]
    avif = encode(draw(), "AVIF")
    cases = [(HEIC, HEIC.replace(own, brands)) for brands in others]
    cases += [(avif, avif.replace(b"ftypavif", b"ftyp" + brand)) for brand in (b"mif1", b"msf1")]
    for data, other in cases:
        assert other != data and open_image(other).tobytes() == open_image(data).tobytes()


def test_a_jpeg_that_repeats_its_last_scan_is_refused() -> None:
    data = jpeg(400_000 // 1000, 1000)
    with pytest.raises(ImageTooLargeError, match=rf"more than {MAX_SCANS} scans"):
        open_image(data)
    # As decoders count: what progressive files have by themselves, and a little more, is read.
    assert open_image(jpeg(MAX_SCANS - 20)).size == (64, 64)


def test_empty_scans_are_refused_at_once() -> None:
    data = jpeg(0)
    begin = data.rindex(b"\xff\xda")
    head = data[begin : begin + 2 + int.from_bytes(data[begin + 2 : begin + 4])]
    start = time.process_time()
    with pytest.raises(ImageTooLargeError, match=f"more than {MAX_SCANS} scans"):
        open_image(data[:begin] + head * 800_000)  # 8 MB; 6.5 s when all were counted
    assert time.process_time() - start < 1


def test_scans_in_metadata_and_behind_the_picture_do_not_count() -> None:
    data = jpeg(0)
    noise = b"\xff\xda" * 1000
    in_metadata = data[:2] + b"\xff\xe5" + struct.pack(">H", len(noise) + 2) + noise + data[2:]
    for odd in (in_metadata, data + noise):
        assert open_image(odd).tobytes() == open_image(data).tobytes()


@pytest.mark.parametrize("tile", [(32768, 65504), (1 << 31, 16), (16, 1 << 31)])
def test_a_tiff_with_tiles_larger_than_any_photo_is_refused(tile: tuple[int, int]) -> None:
    for big in (False, True):
        with pytest.raises(ImageTooLargeError, match=f"tiles of {tile[0]} x {tile[1]} pixels"):
            open_image(tiled(tile, big=big))


def test_a_tile_may_be_larger_than_a_small_picture() -> None:
    with pytest.raises(ImageError, match="cut off or damaged"):  # and not too large
        open_image(tiled((512, 512)), max_pixels=64 * 64)


# Opens each with little memory to spare, and says how it went and how many seconds it computed.
OPEN = """
import io, json, resource, sys, time
import pi_heif.as_plugin
from captioner.errors import ImageError
from captioner.photos.open import open_image
from tests.captioner import bombs
for name in bombs.MAKERS:
    data = bombs.make(name)
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 300_000_000, -1))
    start = time.process_time()
    try:
        said = open_image(data).size
    except (ImageError, MemoryError) as error:
        said = getattr(error, "type", "memory")
    seconds = time.process_time() - start
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    print(json.dumps([name, said, seconds]), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_metadata_is_not_copied_a_thousand_times() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OPEN],
        capture_output=True, text=True, env=environment(PYTHONWARNINGS="ignore"), check=False,
    )  # fmt: skip
    found = {
        name: (said, seconds)
        for name, said, seconds in map(json.loads, done.stdout.split("\n")[:-1])
    }
    assert found.keys() == bombs.MAKERS.keys(), done.stderr
    assert {name for name, (_, seconds) in found.items() if seconds > 5} == set()  # minutes before
    refused = {name: said for name, (said, _) in found.items() if not isinstance(said, list)}
    large = ("jpeg, small segments", "jpeg, comments", "png, empty chunks",
             "png, empty pixels", "tiff", "tiff, few", "tiff, big", "gif")  # fmt: skip
    assert refused == dict.fromkeys(large, "image-too-large")
    for name in ("jpeg", "png", "webp"):
        assert found[name][0] == [48, 64], "a turn among the entries"


def test_orientation_is_that_of_pillow() -> None:
    for order, head in (("<", b"II*\0"), (">", b"MM\0*")):
        for kind, value in ((3, "HH"), (4, "I")):
            entry = struct.pack(f"{order}HHI{value}", 274, kind, 1, *(6, 0)[: len(value)])
            block = head + struct.pack(f"{order}IH", 8, 1) + entry + bytes(4)
            for data in (block, b"Exif\0\0" + block):
                assert open_image(bombs.png(data=data)).size == (48, 64)
            assert open_image(bombs.jpeg(block=block)).size == (48, 64)
    assert open_image(bombs.jpeg(block=b"II*\0" + bytes(3))).size == (64, 48)


def test_an_orientation_in_xmp_alone_turns_nothing() -> None:
    """As browsers do; also where Pillow has opened the file, and beside an EXIF orientation."""
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'
    data, segment = jpeg(0), b"\xff\xe1" + struct.pack(">H", len(xmp) + 2) + xmp
    for start, size in ((data, (64, 64)), (bombs.jpeg(block=bombs.exif(1, 10)), (48, 64))):
        both = start[:2] + segment + start[2:]
        with Image.open(io.BytesIO(both)) as lazy:
            for source in (both, lazy):
                picture = open_image(source)
                assert picture.size == size
                assert picture.tobytes() == open_image(start).tobytes()
