"""Images of every kind from Python: arrays, tensors, addresses; and invalid objects."""

from __future__ import annotations

import gzip
import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from captioner import Captioner, ImageError, ImageNotFoundError, ImageTypeError, images
from captioner.errors import ImageEmptyError, ImageTooLargeError
from captioner.images import as_source, decode_ahead, is_many, split_batch
from captioner.photos.open import open_image
from tests.captioner.pictures import exif
from tests.web import Handler, hosting

COLORS = np.array([[[255, 0, 0], [0, 128, 0]], [[0, 0, 64], [7, 8, 9]], [[1, 2, 3], [9, 9, 9]]])


def pixels(source: Any) -> list[Any]:
    picture = open_image(as_source(source))
    return [picture.getpixel((x, y)) for y in range(picture.height) for x in range(picture.width)]


@pytest.mark.parametrize(
    "grey",
    [
        np.array([[0, 200]], dtype="uint8"), np.array([[[0], [200]]]), torch.tensor([[[0, 200]]]),
        torch.tensor([[0, 200]]), torch.tensor([[[0, 200 / 255]]], dtype=torch.bfloat16),
    ],
)  # fmt: skip
def test_grey_arrays_are_pictures(grey: Any) -> None:
    assert pixels(grey) == [(0, 0, 0), (200, 200, 200)]


@pytest.mark.parametrize(
    ("image", "error", "value"),
    [
        (np.zeros((5, 20, 30)), ImageTypeError, r"array of shape \(5, 20, 30\)"),
        (torch.zeros(20, 30, 3), ImageTypeError, r"tensor of shape \(20, 30, 3\)"),
        (np.zeros((5, 20, 30, 3)), ImageTypeError, "as a list"),
        (np.full((2, 2), 200.0), ImageTypeError, r"200\.0"),
        (np.full((2, 2), np.nan), ImageTypeError, "nan"),
        (np.zeros((2, 2), dtype=bool), ImageTypeError, "bool"),
        (np.zeros((0, 4, 3)), ImageEmptyError, r"\(0, 4, 3\)"),
        (None, ImageTypeError, "NoneType"),
        ({"a": 1}, ImageTypeError, "dict"),
        (io.StringIO("x"), ImageTypeError, "'rb'"),
        ("ftp://host/a.jpg", ImageNotFoundError, "ftp://host/a.jpg"),
        ("HTTPS://127.0.0.1:1/a.jpg", ImageNotFoundError, "HTTPS://127.0.0.1:1/a.jpg"),
        *((f"{scheme}:image/png;base64," + "A" * 5000, ImageNotFoundError, "base64")
          for scheme in ("data", "DATA")),
    ],
)  # fmt: skip
def test_other_objects_are_refused_with_their_value(image: Any, error: Any, value: str) -> None:
    assert not is_many(image)
    with pytest.raises(error, match=value) as refused:
        open_image(as_source(image))
    assert "AAAA" not in str(refused.value)  # a data URI is not repeated


def test_a_file_object_is_read_from_its_position(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a header" + b"photo")
    with (tmp_path / "file").open("rb") as file:
        file.seek(8)
        assert as_source(file) == as_source(file) == b"photo" and not file.closed
    (memory := io.BytesIO(b"a header" + b"photo")).seek(8)
    assert as_source(memory) == b"photo"
    assert as_source(memoryview(b"photo")) == b"photo" and not is_many(memoryview(b"photo"))
    with pytest.raises(ImageNotFoundError, match="closed file"):
        as_source(file)


@pytest.mark.parametrize(
    "batch",
    [
        np.stack([COLORS, COLORS[::-1]]).astype("uint8"),
        np.stack([COLORS, COLORS[::-1]]).transpose(0, 3, 1, 2) / 255,
        torch.from_numpy(np.stack([COLORS, COLORS[::-1]])).permute(0, 3, 1, 2),
    ],
)
def test_a_batch_is_its_images(captioner: Captioner, batch: Any) -> None:
    first, second = split_batch(batch)
    assert pixels(first) == pixels(COLORS) and pixels(second) == pixels(COLORS[::-1])
    assert captioner.caption(batch[:0]) == [] and len(captioner.caption(batch)) == 2


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_channels_of_an_array_come_first_or_last(channels: int) -> None:
    """With as many rows as channels are allowed, the last axis decides."""
    for shape in ((5, 7, channels), (3, 7, channels), (channels, 5, 7)):
        array = np.zeros(shape, dtype="uint8")
        size = shape[:2] if shape[2] == channels else shape[1:]
        for image in (array, *split_batch(np.stack([array, array]))):
            assert open_image(as_source(image)).size == size[::-1]


@pytest.fixture
def host(photo: Path) -> Iterator[str]:
    data = photo.read_bytes()
    bodies = {"/photo.jpg": data, "/cut": data, "/page": b"<html>", "/packed": gzip.compress(data)}

    class Photos(Handler):
        def do_GET(self) -> None:  # noqa: N802
            moved = {"/moved": "/photo.jpg", "/elsewhere": "file:///etc/passwd"}.get(self.path)
            body = bodies.get(self.path, b"")
            self.send_response(302 if moved else 200 if body else 404)
            if moved:
                self.send_header("Location", moved)
            if self.path == "/packed":
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body) + 9 * (self.path == "/cut")))
            self.end_headers()
            self.wfile.write(body)

    with hosting(Photos) as address:
        yield address


def test_addresses_are_downloaded(captioner: Captioner, photo: Path, host: str) -> None:
    caption = captioner.caption(f"{host}/photo.jpg")
    assert caption.text == captioner.caption(photo).text
    assert caption.image == f"{host}/photo.jpg"
    assert caption.contact_sheet().width > 120
    for address in (f"{host}/moved", f"{host}/packed", f"{host.upper()}/photo.jpg"):
        assert captioner.caption(address).text == caption.text
    # Front ends that are given addresses by strangers follow none.
    with pytest.raises(ImageNotFoundError, match="not followed"):
        captioner.prepare(f"{host}/photo.jpg")


def test_downloads_that_fail_name_address_and_status(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, value in {
        f"{host}/nothing": f"{host}/nothing .*404 Not Found",
        f"{host}/elsewhere": f"{host}/elsewhere",
        f"{host}/cut": f"{host}/cut",
        "http://127.0.0.1:9/a.jpg": "127.0.0.1:9/a.jpg .*refused",
        "http://": "http:// ",
    }.items():
        with pytest.raises(ImageNotFoundError, match=value):
            as_source(address)
    with pytest.raises(ImageError, match=f"{host}/page"):
        open_image(as_source(f"{host}/page"))
    monkeypatch.setattr(images, "_LARGEST", 100)
    with pytest.raises(ImageTooLargeError, match=r"photo\.jpg"):
        as_source(f"{host}/photo.jpg")
    monkeypatch.setattr(images, "_LARGEST", 2**20)
    monkeypatch.setattr(images, "_TOTAL_TIMEOUT", -1.0)
    with pytest.raises(ImageNotFoundError, match=r"photo\.jpg .* s: download"):
        as_source(f"{host}/photo.jpg")


def test_a_caption_does_not_wait_for_the_next_photo(captioner: Captioner, photo: Path) -> None:
    """The source gives each photo after the caption of the last one, as a camera may."""
    received = threading.Semaphore(1)

    def camera() -> Iterator[Path]:
        for _ in range(3):
            assert received.acquire(timeout=30)
            yield photo

    captions = captioner.caption_iter(camera(), batch_size=1)
    assert sum(received.release() is None for _ in captions) == 3


def test_a_source_is_read_in_the_thread_of_the_caller() -> None:
    """A cursor of a data base, for example, works in its own thread only."""
    threads = (threading.current_thread() for _ in range(5))
    batches = decode_ahead(threads, lambda thread: thread, batch_size=2)
    assert {thread for batch in batches for thread in batch} == {threading.current_thread()}


def test_closing_does_not_wait_for_images_that_are_being_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("captioner.images.cores", lambda: 2)
    started, closed = threading.Event(), threading.Event()

    def decode(number: int) -> int:
        if number == 0:
            assert started.wait(60)
        elif number > 1:
            started.set()
            closed.wait(10)
        return number

    batches = decode_ahead(range(9), decode, batch_size=2)
    assert next(batches) == [0, 1]
    start = time.monotonic()
    batches.close()
    assert time.monotonic() - start < 5
    closed.set()


def test_a_column_of_paths_is_a_list(captioner: Captioner, photo: Path) -> None:
    for kind in (object, np.dtypes.StringDType()):
        assert is_many(np.array(["a.jpg"], kind)) and not is_many(np.array([["a.jpg"]], kind))
    for paths in (pd.Series([str(photo)] * 2), np.array([str(photo)] * 2)):
        assert [caption.image for caption in captioner.caption(paths)] == [str(photo)] * 2


def test_pixels_of_an_open_jpeg_are_used_once_it_is_loaded(photo: Path) -> None:
    """They may have been changed. Before that its file is read, at any size."""
    with photo.open("rb") as file:
        image = Image.open(file)
        assert as_source(image) == photo.read_bytes()
        image.paste("white", (0, 0, *image.size))
        assert {*pixels(image)} == {(255, 255, 255)}


def test_the_frame_that_a_picture_of_several_is_at_is_used() -> None:
    first, second = Image.new("RGB", (4, 3), "white"), Image.new("RGB", (4, 3), "black")
    first.save(file := io.BytesIO(), "MPO", save_all=True, append_images=[second])
    with Image.open(file) as image:
        assert {*pixels(image)} == {(255, 255, 255)}
        image.seek(1)
        assert {*pixels(image)} == {(0, 0, 0)}


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif"])
def test_a_closed_image_says_that_it_is_closed(
    captioner: Captioner, tmp_path: Path, suffix: str
) -> None:
    Image.new("RGB", (30, 20), "red").save(path := tmp_path / f"photo.{suffix}")
    (closed := Image.open(path)).close()
    with path.open("rb") as file:
        file_closed = Image.open(file)
    for image in (closed, file_closed)[: 1 if suffix == "webp" else 2]:  # a WebP is read at once
        with pytest.raises(ImageNotFoundError, match="closed"):
            captioner.caption(image)
    if suffix != "gif":  # which keeps its file for the next frame
        with Image.open(path) as loaded:
            loaded.load()
        assert captioner.caption(loaded).text


def test_every_kind_of_image_has_the_colours_and_the_box_of_the_file(
    captioner: Captioner, tmp_path: Path
) -> None:
    values = np.zeros((60, 90, 3), np.uint8)
    values[:, :40] = (255, 20, 0)
    values[30:, 40:] = (250, 160, 10)
    path, turned = tmp_path / "red.png", tmp_path / "turned.png"
    Image.fromarray(values).save(path)
    on_its_side = Image.fromarray(np.rot90(values))
    on_its_side.save(turned, exif=exif(6))
    on_its_side.getexif()[0x0112] = 6
    file = captioner.prepare(path)
    tensor = torch.from_numpy(values).permute(2, 0, 1)
    opaque = np.concatenate([values, np.full((60, 90, 1), 255, np.uint8)], axis=2)
    sources = [
        values, values.astype(int), np.asfortranarray(values), opaque, tensor.numpy(),
        values * np.uint16(257), values / 255, (values / 255).astype("float32"), tensor,
        (tensor / 255).requires_grad_(), tensor.bfloat16() / 255, Image.fromarray(values),
        Image.open(path),
        Image.fromarray(values).convert("P", palette=Image.Palette.ADAPTIVE), path.read_bytes(),
        opened := path.open("rb"), turned, turned.read_bytes(), Image.open(turned), on_its_side,
    ]  # fmt: skip
    for number, source in enumerate(sources):
        prepared = captioner.prepare(source)
        np.testing.assert_allclose(prepared.pixels, file.pixels, atol=2, err_msg=str(number))
        assert (prepared.box, prepared.size) == (file.box, (90, 60)), number
    opened.close()
    expected = captioner.caption(path).score
    swapped = captioner.caption(np.ascontiguousarray(values[..., ::-1])).score
    assert abs(swapped - expected) > 1e-3  # the model sees a difference
    sources = [values, tensor, tensor / 255, Image.fromarray(values), Image.open(path)]
    scores = [caption.score for caption in captioner.caption(sources)]
    assert scores == pytest.approx([expected] * 5, abs=1e-4)
