"""Pictures over the HTTP API, from a photo and its record: overlay, sheet, animation."""

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
from captioner_serving.server.api import RecordFields, Service, read_with_record, while_connected
from captioner_serving.server.description import PHOTO, form, picture
from captioner_serving.server.drawing import Drawing
from captioner_serving.server.request import client_of
from captioner_serving.server.service import CaptionService

router = APIRouter(generate_unique_id_function=lambda route: route.path.rpartition("/")[2])


class DrawingFields(RecordFields):
    """The fields of a picture."""

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
    """Draw the attention of all words side by side, as a PNG."""
    return await _draw(request, service, DrawingFields, partial(_draw_all, kind="sheet"))


@router.post(
    "/api/animation",
    openapi_extra=form(DrawingFields, PHOTO, "record"),
    responses=picture("image/webp"),
    response_class=Response,
    tags=["pictures"],
)
async def animation(request: Request, service: Service) -> Response:
    """Draw one word after another, as an animated WebP."""
    return await _draw(request, service, DrawingFields, partial(_draw_all, kind="animation"))


def _draw_all(
    posted: Caption, fields: DrawingFields, *, kind: Literal["sheet", "animation"]
) -> Drawing:
    head = _head_note(posted, fields.head)
    return Drawing(
        kind=kind,
        panels=_panels(posted, fields.head),
        title=f"{posted.text} {head}".strip(),
        note=posted.note if kind == "sheet" else head,
        measure=posted.measure,
        box=posted.box,
        look=fields.look,
    )


def _panels(posted: Caption, head: int | None) -> list[Panel]:
    """Return the words with their weights as lists, which can be pickled without torch."""
    return [
        panel._replace(weights=np.asarray(panel.weights).tolist()) for panel in posted.panels(head)
    ]


def _head_note(posted: Caption, head: int | None) -> str:
    """Return the label of the attention head, in brackets."""
    label = posted.words[0].head_label(head) if posted.words else ""
    return f"({label})" if label else ""


async def _draw(
    request: Request,
    service: CaptionService,
    fields: type[Drawn],
    make: Callable[[Caption, Drawn], Drawing],
) -> Response:
    file, posted, values = await read_with_record(request, service, fields)
    if any(word.attention is None for word in posted.words):
        raise ConfigError("the record has no attention: caption the photo with attention=true")
    drawing = make(posted, values)
    work = service.draw(file.data, drawing, client=client_of(request.scope))
    kind = "image/webp" if drawing.kind == "animation" else "image/png"
    return Response(await while_connected(request, work), media_type=kind)
