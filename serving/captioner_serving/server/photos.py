"""How the server opens photos: in processes that hold nothing but the photo.

A photo may be made to take a decoder for minutes, all memory, or the process with it. So none is
decoded beside the model. There are two lanes: an ordinary JPEG takes a time that its header tells,
and never waits behind what may take longer. In both, clients take turns.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from PIL import Image

from captioner.decoding.decoder import EncodedPhoto
from captioner.decoding.pool import DecodePool
from captioner.decoding.prepared import PreparedImage, prepared_images
from captioner.errors import ImageNotFoundError
from captioner.vision.transform import TransformConfig

__all__ = ["PhotoReader", "is_ordinary"]

# Seconds that a photo may take in the lane for all; the largest PNG takes five on an idle machine.
_SECONDS = 20.0
# Of the system's time: the model comes first, and ordinary photos with it.
_NICE = 5
_ORDINARY = 30_000_000  # pixels; phones have 12 to 24 million, decoded at a half in 65 to 130 ms
_SEGMENTS = 1000  # before the pixels; a reader takes its time for each, and cameras write a few
_BESIDE = 4_000_000  # bytes before the pixels; a profile has one to three


class PhotoReader:
    """Reads photos for the model and for the page's pictures.

    Args:
        transform: how a photo becomes a square.
        max_pixels: larger photos are refused.

    """

    def __init__(self, transform: TransformConfig, *, max_pixels: int) -> None:
        self._quick = DecodePool(transform, workers=1, max_pixels=max_pixels, seconds=_SECONDS)
        self._patient = DecodePool(
            transform,
            workers=2,
            max_pixels=max_pixels,
            seconds=_SECONDS,
            budget=max_pixels + _ORDINARY,  # beside the largest there is room for a usual one
            nice=_NICE,
        )

    async def square(self, photo: bytes | str | Path, *, client: str = "") -> PreparedImage:
        """Bring a photo of a client to the encoder's square.

        Raises:
            ImageError: it cannot be opened.
            CaptionerError: no process can be started, or memory is short.

        """
        if isinstance(photo, bytes):
            encoded = EncodedPhoto("the image", photo)
        else:
            encoded = await asyncio.to_thread(_read, photo)
        pool = self._quick if is_ordinary(encoded.data) else self._patient
        decoded = await asyncio.wrap_future(pool.submit(encoded, client=client))
        decoded.check()
        (prepared,) = prepared_images([(encoded.name, decoded)])
        return prepared

    async def picture(
        self, photo: bytes | str | Path, *, longest: int, client: str = ""
    ) -> Image.Image:
        """Open a whole photo, neither side longer than `longest` pixels.

        Raises:
            ImageError: it cannot be opened.
            CaptionerError: no process can be started, or memory is short.

        """
        if isinstance(photo, bytes):
            encoded = EncodedPhoto("the image", photo)
        else:
            encoded = await asyncio.to_thread(_read, photo)
        future = self._patient.submit(encoded, longest=longest, client=client)
        decoded = await asyncio.wrap_future(future)
        decoded.check()
        return Image.frombytes("RGB", decoded.shape, decoded.pixels)

    def close(self) -> None:
        """End the processes."""
        self._quick.close()
        self._patient.close()


def _read(photo: str | Path) -> EncodedPhoto:
    try:
        return EncodedPhoto(str(photo), Path(photo).read_bytes())
    except OSError as error:
        reason = f"{photo} cannot be read ({error.strerror}): check the path"
        raise ImageNotFoundError(reason) from error


def is_ordinary(data: bytes) -> bool:
    """Whether a file is a JPEG that is decoded in one pass, and not very large.

    That is: baseline, grey or of three colours (inks may have a profile, which takes time), all of
    them in its first scan, at which a decoder stops, with little said before it. Its time goes with
    its pixels and nothing else.
    """
    if data[:2] != b"\xff\xd8":
        return False
    place, colours = 2, 0
    for _ in range(_SEGMENTS):
        if place + 4 > len(data) or place > _BESIDE or data[place] != 0xFF:
            return False
        marker = data[place + 1]
        length = int.from_bytes(data[place + 2 : place + 4])
        if marker == 0xC0 and place + 10 <= len(data):
            height = int.from_bytes(data[place + 5 : place + 7])
            width = int.from_bytes(data[place + 7 : place + 9])
            colours = data[place + 9]
            if width * height > _ORDINARY or colours not in (1, 3):
                return False
        elif marker == 0xDA:
            return place + 5 <= len(data) and 0 < colours == data[place + 4]
        elif 0xC1 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return False  # progressive, lossless, arithmetic
        elif not (0xE0 <= marker <= 0xFE or marker in (0xC4, 0xDB, 0xDD)):
            return False
        if length < 2:
            return False
        place += 2 + length
    return False
