"""POST /api/overlay, /api/sheet, /api/animation: a photo and its record in, a picture out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from PIL import Image
from pydantic import BaseModel, Field

from captioner.caption import Caption
from captioner.drawing.overlay import DEFAULT_COLORS, DEFAULT_STRENGTH
from captioner.drawing.saving import encode_animation
from captioner.errors import ConfigError, ImageNotFoundError
from captioner_serving.server.door import client_of
from captioner_serving.server.forms import read_form
from captioner_serving.server.problems import RequestError
from captioner_serving.server.service import CaptionService

__all__ = ["make_drawing", "photo_and_record", "read_record"]

# Sharp on any screen; a 100-megapixel PNG would be of use to nobody.
_LONGEST_SIDE = 2400
_MOST_WORDS = 64  # a panel or a frame each


class DrawingFields(BaseModel):
    """The form fields beside the image: its record, and how it is drawn."""

    record: str = ""
    smooth: bool = True
    strength: Annotated[float, Field(ge=0, le=1)] = DEFAULT_STRENGTH
    colors: str = DEFAULT_COLORS
    head: Annotated[int, Field(ge=1)] | None = None

    @property
    def look(self) -> dict[str, Any]:
        """How it is drawn, as Caption's own functions call it."""
        return self.model_dump(include={"smooth", "strength", "colors", "head"})


class OverlayFields(DrawingFields):
    """The fields of an overlay: one word, by its position from 1; None is the most looked-at."""

    word: Annotated[int, Field(ge=1)] | None = None


def read_record(text: str) -> Caption:
    """Make a caption of a posted record; its photo is not opened.

    Raises:
        RequestError: it is not the JSON of a record.
        ConfigError: a number of it is out of range.

    """
    if not text:
        raise RequestError("there is no record: send one, as curl -F 'record=<file.json' does")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            "the record is not JSON: send one of the `records` of /api/caption"
        ) from error
    if not isinstance(record, dict) or not {"caption", "words"} <= record.keys():
        raise RequestError(
            "the record has no caption with words: send one of the `records` of /api/caption"
        )
    caption = Caption.from_record(record, open_photo=_no_photo)
    if len(caption.words) > _MOST_WORDS:
        raise ConfigError(f"the record has more than {_MOST_WORDS} words")
    return caption


def photo_and_record(fields: type[BaseModel]) -> dict[str, Any]:
    """Describe a form with an image, for the API's documentation."""
    schema = fields.model_json_schema()
    photo = {"type": "string", "format": "binary"}
    properties = {"image": photo, **schema["properties"]}
    form = {"type": "object", "required": ["image", "record"], "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}


def make_drawing(service: CaptionService) -> APIRouter:
    """The routes of pictures."""
    router = APIRouter(prefix="/api", tags=["pictures"])

    async def draw(
        request: Request, kind: type[DrawingFields], make: Callable[[Caption, Any], Response]
    ) -> Response:
        client = client_of(request.scope)
        service.require_room(client)
        (file,), fields = await read_form(request, kind, max_bytes=service.config.max_upload)
        caption = read_record(fields.record)
        if any(word.attention is None for word in caption.words):
            raise ConfigError("the words of the record carry no attention: ask for attention=true")
        caption.panels(fields.head)  # refused before anything is opened

        def work(photo: Image.Image) -> Response:
            return make(replace(caption, open_photo=photo.copy), fields)

        return await service.with_photo(file.data, work, longest=_LONGEST_SIDE, client=client)

    @router.post("/overlay", openapi_extra=photo_and_record(OverlayFields), response_class=Response)
    async def overlay(request: Request) -> Response:
        """Draw the attention of one word over the photo, as a PNG."""
        return await draw(
            request, OverlayFields, lambda one, asked: _png(one.overlay(asked.word, **asked.look))
        )

    @router.post("/sheet", openapi_extra=photo_and_record(DrawingFields), response_class=Response)
    async def sheet(request: Request) -> Response:
        """Draw every word's attention side by side, as a PNG."""
        return await draw(
            request, DrawingFields, lambda one, asked: _png(one.contact_sheet(**asked.look))
        )

    @router.post(
        "/animation", openapi_extra=photo_and_record(DrawingFields), response_class=Response
    )
    async def animation(request: Request) -> Response:
        """Run through the words, as an animated WebP."""
        return await draw(
            request, DrawingFields, lambda one, asked: _webp(one.animation(**asked.look))
        )

    return router


def _no_photo() -> Image.Image:
    raise ImageNotFoundError("the photo was not kept: send it with its record")


def _png(image: Image.Image) -> Response:
    # The fastest compression: twice the bytes, a fifth of the wait.
    image.save(buffer := io.BytesIO(), "PNG", compress_level=1)
    return Response(buffer.getvalue(), media_type="image/png")


def _webp(frames: list[Image.Image]) -> Response:
    return Response(encode_animation(frames, ".webp"), media_type="image/webp")
