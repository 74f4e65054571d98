"""A small JPEG of a photo that browsers do not show, or would show another frame of."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

from PIL import Image

from captioner_serving.server.photos import PhotoReader

__all__ = ["make_preview", "needs_preview"]

_LONGEST_SIDE = 1440  # sharp at 720 points on a high-density screen
_ISO_SHOWN = (b"avif",)  # of the containers of HEIC and AVIF, what browsers show, and is no film


def needs_preview(data: bytes) -> bool:
    """Whether browsers would show nothing of a photo, or more than the frame that is captioned."""
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+") or data[:4] == b"GIF8":
        return True
    if data[4:8] == b"ftyp":
        return data[8:12] not in _ISO_SHOWN
    if data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X":
        return bool(data[20] & 0x02) if len(data) > 20 else False
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        pixels = data.find(b"IDAT")
        return b"acTL" in data[: max(pixels, 0)]
    return False


async def make_preview(photos: PhotoReader, data: bytes, *, client: str) -> dict[str, Any]:
    """Draw the photo as a viewer sees it: width, height, and a JPEG in a data URL."""
    photo = await photos.picture(data, longest=_LONGEST_SIDE, client=client)
    return await asyncio.to_thread(_encode, photo)


def _encode(photo: Image.Image) -> dict[str, Any]:
    photo.save(buffer := io.BytesIO(), "JPEG", quality=90)
    text = base64.b64encode(buffer.getvalue()).decode()
    return {
        "width": photo.width,
        "height": photo.height,
        "image": f"data:image/jpeg;base64,{text}",
    }
