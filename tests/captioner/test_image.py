"""`open_image` returns the picture that a viewer shows, or raises a clear error.

The pictures are drawn here; what they are compared with is the drawing itself, before it was
turned, compressed or cut.
"""

from __future__ import annotations

import errno
import io
import os
import struct
import warnings
from pathlib import Path
from threading import Thread

import pytest
from PIL import Image, ImageChops, ImageStat

from captioner.errors import (
    ImageEmptyError,
    ImageError,
    ImageFormatError,
    ImageNotFoundError,
    ImageTooLargeError,
    ImageTruncatedError,
)
from captioner.photos.open import open_image
from tests.captioner.pictures import draw, encode, exif, icc, png, turned

FORMATS = ["JPEG", "PNG", "WEBP", "AVIF", "BMP", "GIF", "TIFF"]
LOSSLESS = {"PNG": {}, "BMP": {}, "TIFF": {}, "WEBP": {"lossless": True}}
WHITE, RED, BLACK = (255, 255, 255), (255, 0, 0), (0, 0, 0)


def colours(picture: Image.Image) -> list[tuple[int, ...]]:
    data = picture.tobytes()
    return [tuple(data[at : at + 3]) for at in range(0, len(data), 3)]


def difference(one: Image.Image, other: Image.Image) -> float:
    """The mean absolute difference, 0 to 255."""
    assert one.size == other.size
    assert one.mode == other.mode == "RGB"
    return sum(ImageStat.Stat(ImageChops.difference(one, other)).mean) / 3


def test_a_pil_image_is_turned_and_stays_as_it_is():
    own = draw()
    own.getexif()[0x0112] = 6
    before = own.tobytes()
    picture = open_image(own)
    assert difference(picture, draw().transpose(Image.Transpose.ROTATE_270)) == 0
    picture.paste(BLACK, (0, 0, 64, 48))
    assert own.tobytes() == before
    assert own.getexif()[0x0112] == 6
    assert own.size == (64, 48)


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in ("BMP", "GIF")])
def test_exif_orientation_is_applied(kind):
    for orientation in range(1, 9):
        picture = open_image(turned(kind, orientation, **LOSSLESS.get(kind, {})))
        assert difference(picture, draw()) <= (0 if kind in LOSSLESS else 4), orientation
        assert difference(open_image(picture), picture) == 0  # not turned twice
        assert not picture.info
        reduced = open_image(turned(kind, orientation), at_least=8)
        assert reduced.info["size"] == draw().size, orientation


def test_alpha_lies_over_white():
    image = Image.new("RGBA", (3, 1))
    image.putdata([(255, 0, 0, 255), (255, 0, 0, 0), (255, 0, 0, 51)])
    expected = [RED, WHITE, (255, 204, 204)]
    assert colours(open_image(encode(image, "PNG"))) == expected
    assert colours(open_image(image)) == expected
    grey = Image.frombytes("LA", (2, 1), b"\x80\0\x80\xff").convert("La")
    assert colours(open_image(grey)) == [WHITE, (128, 128, 128)]


def test_palette_with_transparency():
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *BLACK, 0, 0, 255])
    image.putdata([0, 1, 2])
    one = encode(image, "PNG", transparency=1)
    assert colours(open_image(one)) == [RED, WHITE, (0, 0, 255)]
    many = encode(image, "PNG", transparency=b"\xff\x00\x33")
    assert colours(open_image(many)) == [RED, WHITE, (204, 204, 255)]
    assert colours(open_image(encode(image, "PNG"))) == [RED, BLACK, (0, 0, 255)]
    assert colours(open_image(encode(image, "GIF", transparency=1)))[1] == WHITE


@pytest.mark.parametrize(
    ("depth", "colour", "rows", "transparent", "expected"),
    [
        (8, 0, b"\0\x10\x80", b"\0\x10", [WHITE, (128, 128, 128)]),
        (16, 0, b"\0\x10\x01\x80\x80", b"\x10\x01", [WHITE, (128, 128, 128)]),
        (8, 2, b"\0\x01\x02\x03\x80\0\0", b"\0\x01\0\x02\0\x03", [WHITE, (128, 0, 0)]),
        (16, 2, b"\0" + b"\x11\x22" * 3 + b"\x80" * 6, b"\x11\x22" * 3, [WHITE, (128, 128, 128)]),
    ],
)
def test_transparent_colour_of_a_png(depth, colour, rows, transparent, expected):
    data = png(2, 1, rows, b"tRNS" + transparent, depth=depth, colour=colour)
    assert colours(open_image(data)) == expected
    damaged = bytearray(data)
    damaged[data.index(b"tRNS") + 4 + len(transparent)] ^= 1  # its checksum
    opaque, other = colours(open_image(bytes(damaged)))
    assert max(opaque) <= 17 and other == expected[1]


def test_floats_run_to_1_or_to_255_and_integers_to_255_or_65535():
    for mode, levels in (("F", [0.0, 0.25, 0.5]), ("F", [0.0, 64.0, 127.5]), ("I", [0, 64, 128])):
        image = Image.new(mode, (3, 1))
        image.putdata(levels)
        for source in (image, encode(image, "TIFF")):
            assert [pixel[0] for pixel in colours(open_image(source))] == [0, 64, 128]
    for mode, levels in (
        ("F", [-0.5, 0.0, 0.5]), ("F", [0.0, 1.0, 1000.0]), ("F", [float("inf"), 0.0, 1.0]),
        ("I", [-1, 0, 1]), ("I", [0, 1, 65536]),
    ):  # fmt: skip
        image = Image.new(mode, (3, 1))
        image.putdata(levels)
        value = f"from {min(levels):g} to {max(levels):g}; .*8 bits"
        with pytest.raises(ImageFormatError, match=value):
            open_image(image)


@pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr", "LAB", "CMYK"])
def test_images_of_other_modes_become_rgb(mode):
    white = Image.new("RGB", (4, 4), "white")
    picture = open_image(white.convert("RGB").convert(mode))
    assert picture.mode == "RGB"
    assert min(picture.tobytes()) >= 250
    assert max(open_image(Image.new("RGB", (4, 4)).convert(mode)).tobytes()) <= 5


def cmyk_profile() -> bytes:
    """A printer whose cyan ink is red, and whose magenta and yellow are as white as paper."""

    white = bytes((255, 128, 128))  # L, a, b in 8 bits

    def table(cyan: bytes) -> bytes:
        def colour(corner: int) -> bytes:  # C, M, Y, K are the bits of the corner
            return bytes((0, 128, 128)) if corner & 1 else cyan if corner & 8 else white

        ramp = bytes(range(256))
        one = struct.pack(">i", 65536)
        zero = bytes(4)
        data = b"mft1" + bytes(4) + bytes((4, 3, 2, 0)) + (one + zero * 3) * 2 + one
        data += ramp * 4 + b"".join(map(colour, range(16))) + ramp * 3
        return data + bytes(-len(data) % 4)

    # Perceptual, and relative colorimetric: browsers use the first.
    tags = {b"A2B0": table(bytes((136, 208, 195))), b"A2B1": table(white)}
    return icc(tags, device=b"prtr", space=b"CMYK", connection=b"Lab ")


def test_cmyk_goes_by_its_profile_and_without_it_where_it_is_damaged():
    image = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    profile = cmyk_profile()
    pixel = open_image(encode(image, "JPEG", icc_profile=profile)).getpixel((8, 8))
    assert pixel[0] > 200
    assert max(pixel[1:]) < 60
    plain = open_image(encode(image, "JPEG"))
    assert plain.getpixel((8, 8))[0] < 60
    for damaged in (profile[:200], b"not a profile", b"\0" * 128):
        picture = open_image(encode(image, "JPEG", icc_profile=damaged))
        assert difference(picture, plain) == 0


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_the_first_of_several_frames(kind):
    first, second = Image.new("RGB", (32, 32), RED), Image.new("RGB", (32, 32), (0, 0, 255))
    data = encode(first, kind, save_all=True, append_images=[second, first])
    assert difference(open_image(data), first) < 4


def test_the_first_picture_of_a_phone_mpo():
    data = encode(draw(), "MPO", save_all=True, append_images=[Image.new("RGB", (64, 48))])
    assert open_image(data, at_least=24).size == (32, 24)
    damaged = data.replace(b"\x02\xb0", b"\x09\xb0")  # the list of the others
    assert damaged != data
    for source in (data, damaged):
        assert difference(open_image(source), draw()) < 4


@pytest.mark.parametrize(
    ("size", "at_least", "decoded"),
    [
        ((1600, 1200), 150, (200, 150)),
        ((1600, 1200), 151, (400, 300)),
        ((300, 200), 224, (300, 200)),
        ((450, 4000), 224, (225, 2000)),
        ((1600, 1599), 100, (200, 200)),  # at an eighth, both sides are equal
    ],
)
def test_a_large_jpeg_is_decoded_as_small_as_allowed(size, at_least, decoded):
    for turn, step in ((1, 1), (6, -1)):
        data = encode(Image.new("RGB", size, RED), "JPEG", exif=exif(turn))
        picture = open_image(data, at_least=at_least)
        assert (picture.size, picture.info["size"]) == (decoded[::step], size[::step])
        assert picture.getpixel((5, 5))[0] > 240


def patched(data: bytes, offset: int, layout: str, *values: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(layout, changed, offset, *values)
    return bytes(changed)


def bombs() -> dict[str, bytes]:
    """Small files with headers of 20,000 x 15,000 pixels."""
    dot = Image.new("RGB", (8, 8))
    jpeg, tiff = encode(dot, "JPEG"), encode(dot, "TIFF")
    gif = encode(dot, "GIF", disposal=2)  # the disposed area is allocated
    screen = gif.index(b",", 13)
    webp = encode(dot, "WEBP", save_all=True, append_images=[Image.new("RGB", (8, 8), RED)])
    return {
        "PNG": png(20000, 15000, b"\0" * 100),
        "JPEG": patched(jpeg, jpeg.index(b"\xff\xc0") + 5, ">HH", 15000, 20000),
        "BMP": patched(encode(dot, "BMP"), 18, "<ii", 20000, 15000),
        "GIF screen": patched(gif, 6, "<HH", 20000, 15000),
        "GIF frame": patched(gif, screen + 5, "<HH", 12000, 12000),
        "GIF place": patched(gif, screen + 1, "<HH", 19992, 14992),
        "TIFF": tiff.replace(
            struct.pack("<HHIHxx", 256, 4, 1, 8), struct.pack("<HHII", 256, 4, 1, 20000)
        ).replace(struct.pack("<HHIHxx", 257, 4, 1, 8), struct.pack("<HHII", 257, 4, 1, 15000)),
        "WEBP": patched(webp, webp.index(b"VP8X") + 12, "<HBHB", 11999, 0, 11999, 0),
    }


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_bombs_take_no_memory_and_change_no_global_setting():
    def memory(name):
        status = Path("/proc/self/status").read_text()
        return int(status.split(f"{name}:")[1].split()[0]) * 1024

    limit, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): the most begins anew
    before = memory("VmRSS")
    for data in bombs().values():
        with pytest.raises(ImageTooLargeError):
            open_image(data)
    assert memory("VmHWM") - before < 30_000_000
    assert (limit, filters) == (Image.MAX_IMAGE_PIXELS, warnings.filters)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_limit_counts_the_photo_itself(kind):
    data = encode(draw(), kind)
    admitted: list[int] = []
    picture = open_image(data, max_pixels=64 * 48, at_least=8, admit=admitted.append)
    assert picture.info["size"] == (64, 48) and admitted == [64 * 48]
    with pytest.raises(ImageTooLargeError, match="64 x 48"):
        open_image(data, max_pixels=64 * 48 - 1, at_least=8)
    with pytest.raises(ImageTooLargeError):
        open_image(draw(), max_pixels=64 * 48 - 1)


def test_a_pipe_is_closed_before_its_photo_is_decoded(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused = []

    def write_again(_pixels: int) -> None:
        with pytest.raises(OSError) as raised:
            os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        refused.append(raised.value.errno)

    writer = Thread(target=pipe.write_bytes, args=[encode(draw(), "PNG")])
    writer.start()
    open_image(pipe, admit=write_again)
    writer.join()
    assert refused == [errno.ENXIO]  # the pipe has no reader


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "GIF"])
def test_the_limit_of_pillow_is_not_in_the_way(kind, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    data = turned(kind, 6) if kind != "BMP" else encode(draw(), kind)
    assert open_image(data).size == (64, 48)


@pytest.mark.parametrize("limit", [2000, 100])  # Pillow would warn; would raise
def test_a_gif_beyond_the_limit_of_pillow_is_refused_without_a_warning(limit, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    data = encode(draw(), "GIF", save_all=True, append_images=[Image.new("RGB", (64, 48))])
    with pytest.raises(ImageTooLargeError, match="64 x 48"):
        open_image(patched(data, 6, "<HH", 1, 1))


def test_zero_bytes_and_zero_pixels():
    with pytest.raises(ImageEmptyError, match="0 bytes"):
        open_image(b"")
    with pytest.raises(ImageEmptyError, match="no pixels"):
        open_image(Image.new("RGB", (0, 5)))
    with pytest.raises(ImageEmptyError, match="no pixels"):
        open_image(png(0, 0))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_truncated_photo_is_refused(kind):
    data = encode(Image.effect_noise((200, 150), 90).convert("RGB"), kind)
    for part in (0.5, 0.9):
        source = data[: int(len(data) * part)]
        with pytest.raises(ImageTruncatedError, match=r"cut off or damaged: .*download it again"):
            open_image(source)
    if kind == "JPEG":
        with Image.open(io.BytesIO(source)) as lazy, pytest.raises(ImageTruncatedError):
            open_image(lazy)


@pytest.mark.parametrize(
    "path", ["gone.jpg", ".", "", "photo\0.jpg", "x" * 5000, "/proc/self/mem"]
)  # the last opens, but reading fails
def test_a_file_that_cannot_be_read_is_named(path):
    with pytest.raises(ImageNotFoundError, match="cannot be read"):
        open_image(path)


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("captioner.photos.open.LARGEST_FILE", 100)
    (path := tmp_path / "photo.jpg").write_bytes(bytes(100))
    with pytest.raises(ImageFormatError):
        open_image(path)
    path.write_bytes(bytes(101))
    for source in (path, bytes(101)):
        with pytest.raises(ImageTooLargeError, match="has more than 100 bytes"):
            open_image(source)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no /dev/fd")
@pytest.mark.parametrize("kind", FORMATS)
def test_no_file_is_left_open(kind, tmp_path):
    path, data, results = tmp_path / "photo", encode(draw(), kind), []
    before = set(os.listdir("/dev/fd"))  # noqa: PTH208 - names, not paths
    for cut in (len(data), len(data) // 2, len(data) // 20, 20, 5, 0):
        path.write_bytes(data[:cut])
        try:
            results.append(open_image(path))
        except ImageError as error:
            results.append(error)  # with its frames
    assert set(os.listdir("/dev/fd")) <= before  # noqa: PTH208
    assert isinstance(results[0], Image.Image)
    assert isinstance(results[-1], ImageEmptyError)
