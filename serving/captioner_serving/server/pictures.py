"""The pictures that a visitor may take home: overlay, contact sheet, animation.

They are drawn by the library when they are asked for, from the photo as it was uploaded, for as
long as the upload is kept.
"""

from __future__ import annotations

import io
import math
import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from PIL import Image

from captioner.caption import Caption
from captioner.drawing.colors import DEFAULT_COLORS
from captioner.drawing.overlay import DEFAULT_STRENGTH
from captioner.drawing.saving import encode_animation
from captioner.errors import ImageNotFoundError
from captioner_serving.server.problems import GoneError

__all__ = ["CaptionShelf", "make_picture_router"]

# Sharp on any screen; a 100-megapixel PNG would be of use to nobody who clicks "download".
_LONGEST_SIDE = 2400
# Sharp at 720 points on a high-density screen.
_SHOWN_SIDE = 1440
_MOST = 1000  # captions; one takes a few kilobytes, for the photo lies in the store


@dataclass(frozen=True)
class _Kept:
    caption: Caption
    until: float


class CaptionShelf:
    """Captions by a token that cannot be guessed, for a while.

    Args:
        keep: seconds.

    """

    def __init__(self, *, keep: float) -> None:
        self._keep = keep
        self._kept: dict[str, _Kept] = {}  # the oldest first

    def put(self, caption: Caption, *, forever: bool = False) -> str:
        """Keep a caption, and tell its token."""
        self.sweep()
        token = secrets.token_urlsafe(16)
        until = math.inf if forever else time.monotonic() + self._keep
        self._kept[token] = _Kept(caption, until)
        return token

    def get(self, token: str) -> Caption:
        """Find a caption.

        Raises:
            GoneError: there is none of this token, or no longer.

        """
        kept = self._kept.get(token)
        if kept is None or kept.until < time.monotonic():
            raise GoneError("photos are deleted within ten minutes: drop it on the page again")
        return kept.caption

    def sweep(self) -> None:
        """Forget what has been kept long enough."""
        now = time.monotonic()
        fading = [token for token, kept in self._kept.items() if kept.until < math.inf]
        surplus = len(fading) - _MOST
        for position, token in enumerate(fading):
            if position < surplus or self._kept[token].until < now:
                del self._kept[token]


Strength = Annotated[float, Query(ge=0, le=1)]
Picture = Literal["photo.jpg", "overlay.png", "sheet.png", "words.webp"]


def make_picture_router(shelf: CaptionShelf) -> APIRouter:
    """The links under the caption."""
    router = APIRouter(prefix="/page/captions", include_in_schema=False)

    @router.get("/{token}/{picture}")
    def draw(
        token: str,
        picture: Picture,
        word: int = 0,
        smooth: bool = True,
        strength: Strength = DEFAULT_STRENGTH,
        colors: str = DEFAULT_COLORS,
    ) -> Response:
        caption = shelf.get(token)
        try:
            if picture == "photo.jpg":
                return _jpeg(_open(caption, _SHOWN_SIDE))
            caption = replace(caption, open_photo=partial(_open, caption, _LONGEST_SIDE))
            if picture == "words.webp":
                frames = caption.animation(smooth=smooth, strength=strength, colors=colors)
                return Response(encode_animation(frames, ".webp"), media_type="image/webp")
            if picture == "sheet.png":
                drawn = caption.contact_sheet(smooth=smooth, strength=strength, colors=colors)
            else:
                drawn = caption.overlay(word + 1, smooth=smooth, strength=strength, colors=colors)
        except ImageNotFoundError as error:
            raise GoneError("photos are deleted within ten minutes: drop it again") from error
        return _png(drawn)

    return router


def _open(caption: Caption, side: int) -> Image.Image:
    photo = caption.open_photo()
    photo.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=3)
    return photo


def _png(image: Image.Image) -> Response:
    # The fastest compression: twice the bytes, a fifth of the wait.
    image.save(buffer := io.BytesIO(), "PNG", compress_level=1)
    return Response(buffer.getvalue(), media_type="image/png")


def _jpeg(image: Image.Image) -> Response:
    image.save(buffer := io.BytesIO(), "JPEG", quality=90)
    return Response(buffer.getvalue(), media_type="image/jpeg")
