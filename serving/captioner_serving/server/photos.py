"""The photos of requests, and the decoding processes of a server."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from typing import Any

from captioner.captioner import Captioner
from captioner.photos.transform import TransformConfig
from captioner_serving.decoding.decoded import (
    Decoded,
    EncodedPhoto,
    Output,
    Readable,
    Square,
)
from captioner_serving.decoding.reader import Reader
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.drawing import Preview

# Pixels of a preview's longer side: sharp at 720 points on a high-density screen.
_LONGEST_PREVIEW = 1440
_SECONDS = 20.0  # time limit of a photo; the largest PNG takes five seconds
_NICE = 5  # lower priority than the model and ordinary photos
_BESIDE = 30_000_000  # pixels that can be decoded beside the largest photo
_WORKERS = 2  # processes for ordinary JPEGs, and as many for other photos
_FETCHING = 6  # processes for photos at URLs, which may wait for their hosts
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # variables that downloads need


def start_reader(captioner: Captioner, config: ServerConfig) -> Reader:
    """Start the decoding processes of a server.

    Args:
        captioner: its `max_pixels` is the limit of a photo.
        config: if it allows URLs, further processes download them.
    """
    reader = Reader(
        captioner.transform.config,
        workers=_WORKERS,
        quick=_WORKERS,
        fetching=_FETCHING if config.allow_urls else 0,
        max_pixels=captioner.max_pixels,
        seconds=_SECONDS,
        budget=captioner.max_pixels + _BESIDE,
        nice=_NICE,
        environment={name: os.environ[name] for name in _CERTIFICATES if name in os.environ},
    )
    reader.start()
    return reader


@dataclass(eq=False)
class Photo:
    """A photo of a request.

    source: the encoded photo or its URL.
    has_preview: also make a preview.
    preview: width, height and data URL of the preview, once the photo is decoded.
    """

    source: Readable
    has_preview: bool = False
    preview: dict[str, Any] | None = None

    @classmethod
    def of_bytes(cls, data: bytes, *, has_preview: bool = False) -> Photo:
        """Return the photo of a client, whose file name is not in error messages."""
        return cls(EncodedPhoto("the image", data), has_preview)

    async def square(self, reader: Reader, config: TransformConfig, *, client: str) -> Decoded:
        """Return the pixels for a model.

        Raises:
            ImageError: the photo cannot be decoded.
            CaptionerError: the failure is not due to the photo.
        """
        outputs: list[Output] = [Square(config)]
        outputs += [Preview(_LONGEST_PREVIEW)] if self.has_preview else []
        square, *previews = await reader.decode(self.source, outputs, client=client)
        square.check()
        for preview in previews:
            width, height = preview.shape
            image = f"data:image/jpeg;base64,{base64.b64encode(preview.pixels).decode()}"
            self.preview = {"width": width, "height": height, "image": image}
        return square
