"""Pictures over the HTTP API: a photo is captioned, and its caption drawn."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field

from captioner.caption import Caption
from captioner.captioner import Captioner
from captioner.drawing.overlay import DEFAULT_COLORS, DEFAULT_STRENGTH
from captioner.errors import ConfigError
from captioner.generation.config import MAX_BEAM_SIZE, GenerationConfig
from captioner_serving.decoding.photo import Drawing
from captioner_serving.networks import client_of
from captioner_serving.server.api import (
    PHOTO,
    PROBLEMS,
    SearchFields,
    Service,
    form,
    named_service,
    read_photos,
    while_connected,
)

_KINDS = {
    "overlay": "the attention of one word over it, as a PNG",
    "sheet": "the attention of all words side by side, as a PNG",
    "animation": "one word after another, as an animated WebP",
}

router = APIRouter(generate_unique_id_function=lambda route: route.path.rpartition("/")[2])


class DrawingFields(SearchFields):
    """The fields of a picture. `sentence`: which of the `captions` to draw, from 1."""

    sentence: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] = 1
    smooth: bool = True
    strength: Annotated[float, Field(ge=0, le=1)] = DEFAULT_STRENGTH
    colors: str = DEFAULT_COLORS

    def settings(self, captioner: Captioner) -> GenerationConfig:
        """See SearchFields."""
        if self.sentence > self.captions:
            raise ConfigError(
                f"sentence is {self.sentence}, and captions is {self.captions}: set captions to "
                f"{self.sentence} or more"
            )
        return super().settings(captioner)


class OverlayFields(DrawingFields):
    """The fields of an overlay. `word`: a position from 1; None: the most visual word."""

    word: Annotated[int, Field(ge=1)] | None = None


def _add(kind: Literal["overlay", "sheet", "animation"], fields: type[DrawingFields]) -> None:
    """Add the route of a kind of picture."""
    media_type = "image/webp" if kind == "animation" else "image/png"

    async def draw(request: Request, service: Service) -> Response:
        (file,), values = await read_photos(request, service, fields)
        service = named_service(request, values.model)
        work = service.draw(
            service.readable(file.data),
            values.settings(service.captioner),
            lambda caption: _drawing(kind, caption.choose(values.sentence - 1), values),
            client=client_of(request.scope),
        )
        return Response(await while_connected(request, work), media_type=media_type)

    router.add_api_route(
        f"/api/{kind}",
        draw,
        name=kind,
        methods=["POST"],
        description=f"Caption a photo, and draw {_KINDS[kind]}.",
        openapi_extra=form(fields),
        responses={
            200: {"description": "the picture", "content": {media_type: {"schema": PHOTO}}},
            **PROBLEMS,
        },
        response_class=Response,
        tags=["pictures"],
    )


def _drawing(kind: str, caption: Caption, fields: DrawingFields) -> Drawing:
    # The weights as lists, which can be pickled without torch.
    panels = [
        panel._replace(weights=np.asarray(panel.weights).tolist()) for panel in caption.panels()
    ]
    options: dict[str, Any] = fields.model_dump(include={"smooth", "strength", "colors"})
    options["box"] = caption.box
    if isinstance(fields, OverlayFields):
        if fields.word is not None and fields.word > len(panels):
            raise ConfigError(f"word is {fields.word}; the caption has {len(panels)} words")
        index = caption.find_word() if fields.word is None else fields.word - 1
        return Drawing("overlay", [panels[index]], options)
    head = caption.head_label()
    if kind == "animation":
        return Drawing("animation", panels, {**options, "note": head})
    options |= {"title": f"{caption.text} {head}".strip(), "note": caption.note}
    return Drawing("sheet", panels, {**options, "measure": caption.measure})


_add("overlay", OverlayFields)
_add("sheet", DrawingFields)
_add("animation", DrawingFields)
