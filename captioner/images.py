"""The images that `Captioner.caption` takes: convert, download, and decode them ahead."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from captioner.errors import ImageEmptyError, ImageNotFoundError, ImageTooLargeError, ImageTypeError
from captioner.inference.device import cores
from captioner.photos.open import FileSource

if TYPE_CHECKING:
    import torch

_LARGEST = 64 * 2**20  # maximum size of a download, in bytes
_READ_TIMEOUT, _TOTAL_TIMEOUT = 15.0, 60.0  # limits of a download, in seconds
_MOST_THREADS = 8  # each may hold a photo of `max_pixels`

_ACCEPTED = (
    "an image is a path, an http or https address, bytes, a binary file, a PIL image, "
    "a numpy array of shape (height, width), (height, width, 3 or 4) or (3 or 4, height, width), "
    "or a torch tensor of shape (1, 3 or 4, height, width)"
)
_RANGES = "integers run from 0 to 255, uint16 to 65535, floats from 0 to 1"

Source = TypeVar("Source")
Result = TypeVar("Result")


class _ArrayImage(Protocol):
    """A numpy array, a torch tensor, or another array."""

    def __array__(self) -> Any: ...


ImageSource = FileSource | BinaryIO | Image.Image | _ArrayImage
"""The inputs of `as_source`."""


class NamedBytes(bytes):
    """The bytes of an image, with its name or address for records and errors."""

    name: str


def is_many(images: object) -> bool:
    """Whether the argument is several images, such as a list or a column of paths, not an array."""
    single = (str, bytes, bytearray, memoryview, os.PathLike, Image.Image, Mapping)
    if isinstance(images, single) or _is_tensor(images) or hasattr(images, "read"):
        return False
    if hasattr(images, "__array__"):  # a column of paths, such as a Series of pandas
        return getattr(images, "ndim", 0) == 1 and np.asarray(images).dtype.kind in "OTU"
    return isinstance(images, Iterable)


def split_batch(images: Any) -> Any:
    """Split an array of four dimensions into a list of images; return anything else unchanged."""
    if getattr(images, "ndim", None) != 4:
        return images
    return list(images if _is_tensor(images) else np.asarray(images))


def image_name(source: object) -> str | None:
    """Return the path or address of an image, open file or PIL image; None if it has none."""
    if isinstance(source, Image.Image):
        source = getattr(source, "filename", None)
    elif isinstance(source, NamedBytes) or hasattr(source, "read"):
        source = getattr(source, "name", None)
    return str(os.fsdecode(source)) or None if isinstance(source, str | os.PathLike) else None


def as_source(image: Any, *, follow_links: bool = True) -> FileSource | Image.Image:
    """Convert an image of any kind to one that `open_image` can open repeatedly.

    File objects and bytearrays are copied. The channels of an array are red, green, blue and
    optionally opacity, or only grey. numpy arrays are (height, width, channels) or
    (channels, height, width), torch tensors (channels, height, width). Integers are 0 to 255
    (uint16 to 65535), floats 0 to 1.

    Args:
        image: any of the kinds in ImageSource.
        follow_links: download http and https addresses, up to 64 MiB. Pass False for untrusted
            addresses.

    Raises ImageError: not an image, an array of another shape or range, an unreadable file, or a
    failed or too large download.
    """
    if _is_tensor(image):
        return _from_tensor(image)
    # numpy.str_ has __array__ too.
    if hasattr(image, "__array__") and not isinstance(image, str):
        return _from_array(np.asarray(image), "array", np.shape(image))
    if isinstance(image, str) and image[:5].lower() == "data:":
        raise ImageNotFoundError("a data: URI is not a path: decode its base64 and pass the bytes")
    if isinstance(image, str | os.PathLike):
        scheme = re.match(r"([a-zA-Z][\w+.-]+)://", image) if isinstance(image, str) else None
        return _download(str(image), scheme[1]) if scheme and follow_links else image
    if isinstance(image, io.TextIOBase):
        raise ImageTypeError("the image file is open as text: open it with 'rb'")
    try:
        if isinstance(image, Image.Image):
            return (isinstance(image, JpegImageFile) and _file_of(image)) or image
        if isinstance(image, bytes):
            return image
        if isinstance(image, bytearray | memoryview):
            return bytes(image)
        if callable(read := getattr(image, "read", None)):
            place = image.tell() if _is_seekable(image) else None
            data = read()
            if place is not None:
                image.seek(place)  # the same file may be passed again
            if isinstance(data, bytes):
                return data
            raise ImageTypeError(f"the file gave {type(data).__name__}: open it with 'rb'")
    except (OSError, ValueError) as error:  # ValueError: it is closed
        raise ImageNotFoundError(
            f"the image file cannot be read ({error}): caption it before it is closed"
        ) from error
    raise ImageTypeError(f"{type(image).__name__} is not an image: {_ACCEPTED}")


def _is_tensor(image: object) -> bool:
    """Whether an object is a torch tensor, without importing torch."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(image, module.Tensor)


def _is_seekable(file: Any) -> bool:
    seekable = getattr(file, "seekable", None)
    return bool(callable(seekable) and seekable())


def _file_of(image: JpegImageFile) -> NamedBytes | None:
    """Read the whole file of an open image; None if Pillow has read more than its header."""
    if not (image.tile and image.fp and not image.decoderconfig and image.tell() == 0):
        return None
    file = image.fp
    place = file.tell()
    file.seek(0)
    data = NamedBytes(file.read())
    file.seek(place)
    data.name = str(image.filename)
    return data


def _from_tensor(tensor: torch.Tensor) -> Image.Image:
    values = tensor.detach().cpu()
    if values.is_floating_point():
        values = values.float()  # numpy has no bfloat16
    if values.dim() == 3:
        values = values.permute(1, 2, 0)
    return _from_array(values.numpy(), "tensor", tuple(tensor.shape))


def _from_array(values: Any, kind: str, shape: tuple[int, ...]) -> Image.Image:
    """Make an image from values (height, width), or with channels as the first or last axis."""
    name = f"the {kind} of shape {shape} and type {values.dtype}"
    channels = (1, 3, 4)
    if kind == "array" and values.ndim == 3 and values.shape[2] not in channels:
        values = values.transpose(1, 2, 0)
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in channels):
        raise ImageTypeError(f"{name} is not an image: {_ACCEPTED}; pass several as a list")
    if values.size == 0:
        raise ImageEmptyError(f"{name} has no pixels")
    if values.dtype.kind not in "uif":
        raise ImageTypeError(f"{name} does not hold numbers: {_RANGES}")
    low, high = values.min(), values.max()
    most = 1 if values.dtype.kind == "f" else 255
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:  # in any byte order
        most = 65535
    if not (low >= 0 and high <= most):  # false for NaN too
        raise ImageTypeError(f"{name} runs from {low} to {high}: {_RANGES}")
    pixels = (values if most == 255 else (values * (255 / most)).round()).astype("uint8")
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)


def _download(address: str, scheme: str) -> NamedBytes:
    import httpx  # slow to import

    from captioner.certificates import tls_context

    if scheme.lower() not in ("http", "https"):
        raise ImageNotFoundError(f"{address} is not an http or https address: download it first")
    data, start = bytearray(), time.monotonic()
    try:
        with httpx.stream(
            "GET", address, verify=tls_context(), follow_redirects=True, timeout=_READ_TIMEOUT
        ) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > _LARGEST:
                    raise ImageTooLargeError(
                        f"{address} has more than {_LARGEST // 2**20} MiB: "
                        "download it and make it smaller"
                    )
                if time.monotonic() - start > _TOTAL_TIMEOUT:
                    raise ImageNotFoundError(
                        f"{address} took more than {_TOTAL_TIMEOUT:.0f} s: download it first"
                    )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.HTTPStatusError):
            status = f"{error.response.status_code} {error.response.reason_phrase}".strip()
            reason = f"the answer is {status}"
        raise ImageNotFoundError(
            f"{address} cannot be downloaded ({reason}): check the address and the connection"
        ) from error
    download = NamedBytes(data)
    download.name = address
    return download


def decode_ahead(
    images: Iterable[Source], decode: Callable[[Source], Result], *, batch_size: int
) -> Generator[list[Result]]:
    """Yield the decoded images in order, `batch_size` at a time.

    The caller's thread reads `images`, and other threads decode them. Two batches are read ahead,
    but the first is yielded if it is decoded before the second is read. With a batch size of 1
    nothing is read ahead, so that images of a slow source, such as a camera, are not late.

    If `images` raises an exception, it is raised again after all earlier images were yielded.
    If `decode` raises one, it is raised instead of the image's batch. `close` does not wait for
    images that are being decoded.
    """
    remaining, ahead = iter(images), 2 * batch_size if batch_size > 1 else 1
    pool = ThreadPoolExecutor(min(cores(), _MOST_THREADS), "decoding")
    tasks: deque[Future[Result]] = deque()
    is_open, is_first, problem = True, True, None

    def is_filled() -> bool:
        if is_first and len(tasks) >= batch_size:
            return all(task.done() for task in islice(tasks, batch_size)) or len(tasks) >= ahead
        return len(tasks) >= ahead

    try:
        while tasks or is_open:
            while is_open and not is_filled():
                try:
                    tasks.append(pool.submit(decode, next(remaining)))
                except StopIteration:
                    is_open = False
                except Exception as error:  # raised after the images before it are yielded
                    is_open, problem = False, error
            batch = [tasks.popleft().result() for _ in range(min(batch_size, len(tasks)))]
            is_first = False
            if batch:
                yield batch
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if problem is not None:
        raise problem
