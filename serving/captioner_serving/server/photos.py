"""How the server opens photos: in processes that hold nothing but the photo.

There are two lanes: an ordinary JPEG takes a time that its header tells, and never waits behind
what may take longer. In both, clients take turns.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from PIL import Image

from captioner.decoding.decoded import Decoded, EncodedPhoto
from captioner.decoding.prepared import PreparedImage, prepared_images
from captioner.decoding.reader import Reader
from captioner.vision.image import image_bytes
from captioner.vision.transform import TransformConfig

__all__ = ["PhotoReader"]

# Seconds that a photo may take; the largest PNG takes five on an idle machine.
_SECONDS = 20.0
# Of the system's time: the model comes first, and ordinary photos with it.
_NICE = 5
_BESIDE = 30_000_000  # pixels: beside the largest photo there is room for a usual one


class PhotoReader:
    """Reads photos for the model and for the page's pictures.

    Args:
        transform: how a photo becomes a square.
        max_pixels: larger photos are refused.

    """

    def __init__(self, transform: TransformConfig, *, max_pixels: int) -> None:
        self._reader = Reader(
            transform,
            workers=2,
            quick=1,
            max_pixels=max_pixels,
            seconds=_SECONDS,
            budget=max_pixels + _BESIDE,
            nice=_NICE,
        )
        self._reader.start()

    async def square(self, photo: bytes | str | Path, *, client: str = "") -> PreparedImage:
        """Bring a photo of a client to the encoder's square.

        Raises:
            ImageError: it cannot be opened.
            CaptionerError: no process can be started, or memory is short.

        """
        name = "the image" if isinstance(photo, bytes) else str(photo)
        (prepared,) = prepared_images([(name, await self._decoded(photo, None, client))])
        return prepared

    async def picture(
        self, photo: bytes | str | Path, *, longest: int, client: str = ""
    ) -> Image.Image:
        """Open a whole photo, neither side longer than `longest` pixels.

        Raises:
            ImageError: it cannot be opened.
            CaptionerError: no process can be started, or memory is short.

        """
        decoded = await self._decoded(photo, longest, client)
        return Image.frombytes("RGB", decoded.shape, decoded.pixels)

    async def _decoded(
        self, photo: bytes | str | Path, longest: int | None, client: str
    ) -> Decoded:
        if isinstance(photo, bytes):
            encoded = EncodedPhoto("the image", photo)
        else:
            encoded = EncodedPhoto(str(photo), await asyncio.to_thread(image_bytes, photo))
        future = self._reader.submit(encoded, longest=longest, client=client)
        decoded = await asyncio.wrap_future(future)
        decoded.check()
        return decoded

    def close(self) -> None:
        """End the processes."""
        self._reader.close()
