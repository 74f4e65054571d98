"""Pictures over the HTTP API: a photo is captioned, and its caption drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field

from captioner.caption import Caption
from captioner.drawing.overlay import DEFAULT_COLORS, DEFAULT_STRENGTH, Panel
from captioner.errors import ConfigError
from captioner.generation.config import MAX_BEAM_SIZE
from captioner_serving.server.api import (
    SearchFields,
    Service,
    named_service,
    read_photos,
    while_connected,
)
from captioner_serving.server.description import form, picture
from captioner_serving.server.drawing import Drawing
from captioner_serving.server.request import client_of, request_info
from captioner_serving.server.service import CaptionService

router = APIRouter(generate_unique_id_function=lambda route: route.path.rpartition("/")[2])


class DrawingFields(SearchFields):
    """The fields of a picture. `sentence`: which of the `captions` to draw, from 1."""

    sentence: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] = 1
    smooth: bool = True
    strength: Annotated[float, Field(ge=0, le=1)] = DEFAULT_STRENGTH
    colors: str = DEFAULT_COLORS
    head: Annotated[int, Field(ge=1)] | None = None

    @property
    def look(self) -> dict[str, Any]:
        """The options of captioner.drawing."""
        return self.model_dump(include={"smooth", "strength", "colors"})


class OverlayFields(DrawingFields):
    """The fields of an overlay. `word`: a position from 1; None: the most visual word."""

    word: Annotated[int, Field(ge=1)] | None = None


Drawn = TypeVar("Drawn", bound=DrawingFields)


@router.post(
    "/api/overlay",
    openapi_extra=form(OverlayFields),
    responses=picture("image/png"),
    response_class=Response,
    tags=["pictures"],
)
async def overlay(request: Request, service: Service) -> Response:
    """Caption a photo, and draw the attention of one word over it, as a PNG."""

    def drawing(caption: Caption, fields: OverlayFields) -> Drawing:
        count = len(caption.words)
        if fields.word is not None and fields.word > count:
            raise ConfigError(f"word is {fields.word}; the caption has {count} words")
        index = caption.find_word() if fields.word is None else fields.word - 1
        panel = _panels(caption, fields.head)[index]
        return Drawing(kind="overlay", panels=[panel], box=caption.box, look=fields.look)

    return await _draw(request, service, OverlayFields, drawing, media_type="image/png")


@router.post(
    "/api/sheet",
    openapi_extra=form(DrawingFields),
    responses=picture("image/png"),
    response_class=Response,
    tags=["pictures"],
)
async def sheet(request: Request, service: Service) -> Response:
    """Caption a photo, and draw the attention of all words side by side, as a PNG."""
    make = partial(_draw_all, kind="sheet")
    return await _draw(request, service, DrawingFields, make, media_type="image/png")


@router.post(
    "/api/animation",
    openapi_extra=form(DrawingFields),
    responses=picture("image/webp"),
    response_class=Response,
    tags=["pictures"],
)
async def animation(request: Request, service: Service) -> Response:
    """Caption a photo, and draw one word after another, as an animated WebP."""
    make = partial(_draw_all, kind="animation")
    return await _draw(request, service, DrawingFields, make, media_type="image/webp")


def _draw_all(
    caption: Caption, fields: DrawingFields, *, kind: Literal["sheet", "animation"]
) -> Drawing:
    head = _head_note(caption, fields.head)
    return Drawing(
        kind=kind,
        panels=_panels(caption, fields.head),
        title=f"{caption.text} {head}".strip(),
        note=caption.note if kind == "sheet" else head,
        measure=caption.measure,
        box=caption.box,
        look=fields.look,
    )


def _panels(caption: Caption, head: int | None) -> list[Panel]:
    """Return the words with their weights as lists, which can be pickled without torch."""
    return [
        panel._replace(weights=np.asarray(panel.weights).tolist()) for panel in caption.panels(head)
    ]


def _head_note(caption: Caption, head: int | None) -> str:
    """Return the label of the attention head, in brackets."""
    label = caption.words[0].head_label(head) if caption.words else ""
    return f"({label})" if label else ""


async def _draw(
    request: Request,
    service: CaptionService,
    kind: type[Drawn],
    make: Callable[[Caption, Drawn], Drawing],
    *,
    media_type: str,
) -> Response:
    (file,), fields = await read_photos(request, service, kind)
    service = named_service(request, fields.model)
    work = service.draw(
        file.data,
        fields.settings(service.captioner),
        lambda caption: make(caption.choose(fields.sentence - 1), fields),
        client=client_of(request.scope),
    )
    picture = await while_connected(request, work)
    request_info(request.scope).is_reported = True
    return Response(picture, media_type=media_type)
