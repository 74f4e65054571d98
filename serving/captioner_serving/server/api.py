"""The HTTP API: POST /api/caption, GET /api/health, GET /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field, ValidationError

from captioner import __version__
from captioner.caption import Caption
from captioner.errors import ImageError
from captioner.generation.config import MAX_BEAM_SIZE
from captioner_serving.server.addresses import client_of
from captioner_serving.server.problems import ClientGoneError, RequestError, bad_fields, problem
from captioner_serving.server.routes import visit_of
from captioner_serving.server.service import CaptionService
from captioner_serving.server.uploads import Upload, read_form

__all__ = ["CaptionFields", "make_router"]

T = TypeVar("T")


class CaptionFields(BaseModel):
    """The form fields of POST /api/caption beside the images."""

    beam_size: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] | None = None
    captions: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] = 1
    style: str | None = None
    attention: bool = False
    check_attention: bool = False


class Problem(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str


class Records(BaseModel):
    """A record for each image, in order; see docs/records.md for what is in one."""

    records: list[dict[str, Any]]


class Health(BaseModel):
    """The server is ready: its model lives, however many wait for it."""

    status: Literal["ready"]
    version: str
    model: dict[str, str]


_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {
                        "image": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "one photo or several: JPEG, PNG, WebP, AVIF, HEIC, "
                            "BMP, GIF or TIFF",
                        },
                        **CaptionFields.model_json_schema()["properties"],
                    },
                }
            }
        },
    }
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text, "content": {"application/problem+json": {}}}
    for status, text in {
        400: "the request is malformed",
        408: "the body arrived too slowly",
        413: "more bytes or images than the server accepts",
        415: "not an image in a known format, or not multipart/form-data",
        422: "a broken, empty or too large image, or a field out of range",
        500: "the server failed; its log says how",
        503: "busy, short of memory or shutting down; Retry-After says when to come again",
    }.items()
}


def make_router(service: CaptionService) -> APIRouter:
    """The routes of the API around one service."""
    router = APIRouter()

    @router.post(
        "/api/caption",
        response_model=Records,
        responses=_PROBLEMS,
        openapi_extra=_FORM,
        tags=["captions"],
        summary="Caption one image or many",
    )
    async def caption(request: Request) -> Response:
        """Answer with a record for each image, in order; one bad image fails alone.

        200 if any image was captioned, else the status of the first one's error. Try
        `curl -F image=@photo.jpg http://127.0.0.1:7860/api/caption`.
        """
        return await _caption(service, request)

    @router.get(
        "/api/health",
        response_model=Health,
        responses={503: _PROBLEMS[503]},
        summary="Whether the model lives",
        tags=["operation"],
    )
    async def health() -> dict[str, Any]:
        """Say ready when the model has just made a caption, is at work, or makes one now."""
        await service.check()
        name = service.captioner.name
        model = {"name": name.name, "version": name.version}
        return {"status": "ready", "version": __version__, "model": model}

    @router.get(
        "/metrics", summary="Prometheus metrics", response_class=Response, tags=["operation"]
    )
    def metrics() -> Response:
        """Requests, latency, batch sizes, the queue and errors."""
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return router


async def _caption(service: CaptionService, request: Request) -> Response:
    client = client_of(request.scope)
    service.require_room(client)
    form = await read_form(
        request,
        name="image",
        max_bytes=service.config.max_upload,
        max_files=service.config.queue,
        fields=tuple(CaptionFields.model_fields),
    )
    fields = _validate(form.fields)
    if not form.files:
        raise RequestError("there is no image: send one as curl -F image=@photo.jpg does")
    images = [file.data for file in form.files]
    config = service.captioner.generation.asked(
        beam_size=fields.beam_size, captions=fields.captions, style=fields.style
    )
    work = service.caption(images, config, client=client, check_attention=fields.check_attention)
    results = await _while_connected(request, work)
    visit_of(request.scope).told = True
    return _answer(form.files, results, attention=fields.attention)


def _validate(fields: dict[str, str]) -> CaptionFields:
    try:
        return CaptionFields.model_validate(fields)
    except ValidationError as error:
        raise bad_fields(error.errors()) from None


def _answer(
    files: list[Upload], results: list[Caption | ImageError], *, attention: bool
) -> Response:
    records: list[dict[str, Any]] = []
    for file, result in zip(files, results, strict=True):
        if isinstance(result, Caption):
            records.append({**result.record(attention=attention), "image": file.name})
        else:
            records.append({"image": file.name, "error": result.record()})
    errors = [result for result in results if isinstance(result, ImageError)]
    if len(errors) == len(results):
        return problem(errors[0], records=records)
    return _Records(records)


class _Records(Response):
    """The records as JSON; they are plain data already, and need no validation."""

    media_type = "application/json"

    def __init__(self, records: list[dict[str, Any]]) -> None:
        super().__init__(Records.model_construct(records=records).model_dump_json())


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work unless the client goes away, which takes its images out of the queue.

    Raises:
        ClientGoneError: it has gone; nobody reads this.
        CaptionerError: what the work raises.

    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError("the client has gone away")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
