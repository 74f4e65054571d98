"""The pictures that a visitor may take home: overlay, contact sheet, animation.

They are drawn by the library when they are asked for, from the photo as it was uploaded, for as
long as the upload is kept.
"""

from __future__ import annotations

import io
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from PIL import Image

from captioner.caption import Caption
from captioner.colors import DEFAULT_COLORS
from captioner.errors import ImageError
from captioner.overlay import DEFAULT_STRENGTH
from captioner.saving import encode_animation
from captioner_serving.server.problems import GoneError

__all__ = ["CaptionShelf", "make_picture_router"]

# Sharp on any screen; a 100-megapixel PNG would be of use to nobody who clicks "download".
_LONGEST_SIDE = 2400
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
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def put(self, caption: Caption) -> str:
        """Keep a caption, and tell its token."""
        self.sweep()
        token = secrets.token_urlsafe(16)
        self._kept[token] = _Kept(caption, time.monotonic() + self._keep)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
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
        while self._kept and next(iter(self._kept.values())).until < now:
            self._kept.popitem(last=False)


Strength = Annotated[float, Query(ge=0, le=1)]
Picture = Literal["overlay.png", "sheet.png", "words.webp"]


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
        caption = _reduced(shelf.get(token))
        buffer = io.BytesIO()
        try:
            if picture == "words.webp":
                frames = caption.animation(smooth=smooth, strength=strength, colors=colors)
                return Response(encode_animation(frames, ".webp"), media_type="image/webp")
            if picture == "sheet.png":
                drawn = caption.contact_sheet(smooth=smooth, strength=strength, colors=colors)
            else:
                drawn = caption.overlay(word=word, smooth=smooth, strength=strength, colors=colors)
        except ImageError as error:
            raise GoneError("the photo is deleted: drop it on the page again") from error
        drawn.save(buffer, "PNG")
        return Response(buffer.getvalue(), media_type="image/png")

    return router


def _reduced(caption: Caption) -> Caption:
    def open_photo() -> Image.Image:
        photo = caption.open_photo()
        photo.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE), Image.Resampling.LANCZOS, reducing_gap=3)
        return photo

    return replace(caption, open_photo=open_photo)
