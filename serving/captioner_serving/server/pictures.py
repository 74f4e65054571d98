"""The pictures that a visitor may take home: overlay, contact sheet, animation.

They are drawn by the library when they are asked for, from the photo as it was uploaded, for as
long as the upload is kept.
"""

from __future__ import annotations

import asyncio
import io
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from PIL import Image

from captioner.caption import Caption
from captioner.decoding.turns import FairThreads
from captioner.drawing.colors import DEFAULT_COLORS
from captioner.drawing.overlay import DEFAULT_STRENGTH
from captioner.drawing.saving import encode_animation
from captioner.errors import ImageNotFoundError
from captioner_serving.server.addresses import client_of
from captioner_serving.server.cookies import COOKIE
from captioner_serving.server.photos import PhotoReader
from captioner_serving.server.problems import GoneError

__all__ = ["GONE", "CaptionShelf", "KeptCaption", "make_picture_router"]

GONE = "photos are deleted within ten minutes: choose it again"
"""What a visitor is told who comes too late."""

# Sharp on any screen; a 100-megapixel PNG would be of use to nobody who clicks "download".
_LONGEST_SIDE = 2400
# Sharp at 720 points on a high-density screen.
_SHOWN_SIDE = 1440
_MOST = 3000  # sentences; one takes a few kilobytes, for the photo lies in the store


@dataclass(frozen=True, kw_only=True)
class KeptCaption:
    """A caption that may be shown again.

    caption: with its alternatives.
    name: of the photo, as its owner calls it.
    owner: the browser that it is shown to; None: to everybody who has its token.
    beam_size, captions: what was asked for.
    """

    caption: Caption
    name: str
    owner: str | None
    beam_size: int
    captions: int


class CaptionShelf:
    """Captions by a token that cannot be guessed, for a while.

    Args:
        keep: seconds.

    """

    def __init__(self, *, keep: float) -> None:
        self._keep = keep
        self._kept: dict[str, tuple[KeptCaption, float]] = {}  # with its end; the oldest first

    def put(self, kept: KeptCaption, *, forever: bool = False) -> str:
        """Keep a caption, and tell its token."""
        self.sweep()
        token = secrets.token_urlsafe(16)
        self._kept[token] = kept, math.inf if forever else time.monotonic() + self._keep
        return token

    def get(self, token: str, owner: str | None) -> KeptCaption:
        """Find a caption.

        Raises:
            GoneError: there is none of this token, or no longer, or it is another browser's.

        """
        kept, until = self._kept.get(token, (None, 0.0))
        if kept is None or until < time.monotonic() or kept.owner not in (None, owner):
            raise GoneError(GONE)
        return kept

    def sweep(self) -> None:
        """Forget what has been kept long enough."""
        now = time.monotonic()
        fading = {token: one for token, one in self._kept.items() if one[1] < math.inf}
        sentences = sum(_sentences(kept) for kept, _ in fading.values())
        for token, (kept, until) in fading.items():
            if sentences > _MOST or until < now:
                sentences -= _sentences(kept)
                del self._kept[token]


def _sentences(kept: KeptCaption) -> int:
    return 1 + len(kept.caption.alternatives)


Strength = Annotated[float, Query(ge=0, le=1)]
Head = Annotated[int | None, Query(ge=1)]
Picture = Literal["photo.jpg", "overlay.png", "sheet.png", "words.webp"]


def make_picture_router(
    shelf: CaptionShelf, photos: PhotoReader, threads: FairThreads
) -> APIRouter:
    """The links under the caption, drawn by the threads."""
    router = APIRouter(prefix="/page/captions", include_in_schema=False)

    async def answer(
        caption: Caption, side: int, client: str, draw: Callable[[Caption], Response]
    ) -> Response:
        try:
            photo = await photos.picture(caption.image or "", longest=side, client=client)

            def work() -> Response:
                return draw(replace(caption, open_photo=photo.copy))

            return await asyncio.wrap_future(threads.submit(work, client))
        except ImageNotFoundError as error:
            raise GoneError(GONE) from error

    @router.get("/{token}/{picture}")
    async def show(
        token: str,
        picture: Picture,
        request: Request,
        sentence: int = 0,
        word: int = 0,
        smooth: bool = True,
        strength: Strength = DEFAULT_STRENGTH,
        colors: str = DEFAULT_COLORS,
        head: Head = None,
    ) -> Response:
        look: Any = {"smooth": smooth, "strength": strength, "colors": colors, "head": head}

        def draw(caption: Caption) -> Response:
            if picture == "photo.jpg":
                return _jpeg(caption.open_photo())
            if picture == "words.webp":
                frames = caption.animation(**look)
                return Response(encode_animation(frames, ".webp"), media_type="image/webp")
            if picture == "sheet.png":
                return _png(caption.contact_sheet(**look))
            return _png(caption.overlay(word + 1, **look))

        caption = shelf.get(token, request.cookies.get(COOKIE)).caption.choose(sentence)
        side = _SHOWN_SIDE if picture == "photo.jpg" else _LONGEST_SIDE
        return await answer(caption, side, client_of(request.scope), draw)

    return router


def _png(image: Image.Image) -> Response:
    # The fastest compression: twice the bytes, a fifth of the wait.
    image.save(buffer := io.BytesIO(), "PNG", compress_level=1)
    return Response(buffer.getvalue(), media_type="image/png")


def _jpeg(image: Image.Image) -> Response:
    image.save(buffer := io.BytesIO(), "JPEG", quality=90)
    return Response(buffer.getvalue(), media_type="image/jpeg")
