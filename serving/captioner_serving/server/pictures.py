"""The HTTP API's pictures of a photo and its record: overlay, sheet and animation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field

from captioner.caption import Caption
from captioner.drawing.overlay import DEFAULT_COLORS, DEFAULT_STRENGTH, Panel
from captioner.errors import ConfigError
from captioner_serving.server.api import RecordFields, Service, read_with_record, while_connected
from captioner_serving.server.description import PHOTO, form, picture
from captioner_serving.server.drawing import Drawing
from captioner_serving.server.request import client_of
from captioner_serving.server.service import CaptionService

__all__ = ["router"]

router = APIRouter(generate_unique_id_function=lambda route: route.path.rpartition("/")[2])
"""The routes, around the service of the application that they are included in."""


class DrawingFields(RecordFields):
    """The fields of a picture: how it is drawn."""

    smooth: bool = True
    strength: Annotated[float, Field(ge=0, le=1)] = DEFAULT_STRENGTH
    colors: str = DEFAULT_COLORS
    head: Annotated[int, Field(ge=1)] | None = None

    @property
    def look(self) -> dict[str, Any]:
        """How it is drawn, as Caption's own functions call it."""
        return self.model_dump(include={"smooth", "strength", "colors"})


class OverlayFields(DrawingFields):
    """The fields of an overlay: one word, by its position from 1; None is the most looked-at."""

    word: Annotated[int, Field(ge=1)] | None = None


Drawn = TypeVar("Drawn", bound=DrawingFields)


@router.post(
    "/api/overlay",
    openapi_extra=form(OverlayFields, PHOTO, "record"),
    responses=picture("image/png"),
    response_class=Response,
    tags=["pictures"],
)
async def overlay(request: Request, service: Service) -> Response:
    """Draw the attention of one word over the photo, as a PNG."""

    def drawing(posted: Caption, fields: OverlayFields) -> Drawing:
        count = len(posted.words)
        if fields.word is not None and fields.word > count:
            raise ConfigError(f"word is {fields.word}; the caption has {count} words")
        index = posted.find_word() if fields.word is None else fields.word - 1
        panel = _panels(posted, fields.head)[index]
        return Drawing(kind="overlay", panels=[panel], box=posted.box, look=fields.look)

    return await _draw(request, service, OverlayFields, drawing)


@router.post(
    "/api/sheet",
    openapi_extra=form(DrawingFields, PHOTO, "record"),
    responses=picture("image/png"),
    response_class=Response,
    tags=["pictures"],
)
async def sheet(request: Request, service: Service) -> Response:
    """Draw every word's attention side by side, as a PNG."""

    def drawing(posted: Caption, fields: DrawingFields) -> Drawing:
        return Drawing(
            kind="sheet",
            panels=_panels(posted, fields.head),
            title=f"{posted.text} {_shown(posted, fields.head)}".strip(),
            note=posted.note,
            measure=posted.measure,
            box=posted.box,
            look=fields.look,
        )

    return await _draw(request, service, DrawingFields, drawing)


@router.post(
    "/api/animation",
    openapi_extra=form(DrawingFields, PHOTO, "record"),
    responses=picture("image/webp"),
    response_class=Response,
    tags=["pictures"],
)
async def animation(request: Request, service: Service) -> Response:
    """Run through the words, as an animated WebP."""

    def drawing(posted: Caption, fields: DrawingFields) -> Drawing:
        return Drawing(
            kind="animation",
            panels=_panels(posted, fields.head),
            note=_shown(posted, fields.head),
            box=posted.box,
            look=fields.look,
        )

    return await _draw(request, service, DrawingFields, drawing)


def _panels(posted: Caption, head: int | None) -> list[Panel]:
    """Return the words with their weights as lists, which the decoding process reads."""
    return [
        panel._replace(weights=np.asarray(panel.weights).tolist()) for panel in posted.panels(head)
    ]


def _shown(posted: Caption, head: int | None) -> str:
    """Name, in brackets, the head that a picture of all words shows."""
    shown = posted.words[0].head_label(head) if posted.words else ""
    return f"({shown})" if shown else ""


async def _draw(
    request: Request,
    service: CaptionService,
    fields: type[Drawn],
    make: Callable[[Caption, Drawn], Drawing],
) -> Response:
    file, posted, given = await read_with_record(request, service, fields)
    if any(word.attention is None for word in posted.words):
        raise ConfigError("the words of the record carry no attention: ask for attention=true")
    drawing = make(posted, given)
    work = service.draw(file.data, drawing, client=client_of(request.scope))
    kind = "image/webp" if drawing.kind == "animation" else "image/png"
    return Response(await while_connected(request, work), media_type=kind)
