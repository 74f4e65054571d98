"""The HTTP API: POST /api/caption, GET /api/health, GET /metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from captioner import __version__
from captioner.caption import Caption
from captioner.errors import CaptionerError, ImageError
from captioner.generation.config import MAX_BEAM_SIZE
from captioner_serving.server.batcher import OnPlace
from captioner_serving.server.door import client_of, visit_of
from captioner_serving.server.drawing import photo_and_record, read_record
from captioner_serving.server.forms import Upload, read_form
from captioner_serving.server.problems import ClientGoneError, problem
from captioner_serving.server.records import (
    LONGEST_PREVIEW,
    make_preview,
    needs_preview,
    served_record,
)
from captioner_serving.server.service import CaptionService

__all__ = ["CaptionFields", "make_api"]

T = TypeVar("T")


LINES = "application/x-ndjson"
"""The media type of an answer that comes line by line; who accepts it hears of the queue."""


class CaptionFields(BaseModel):
    """The form fields of POST /api/caption beside the images."""

    beam_size: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] | None = None
    captions: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] = 1
    style: str | None = None
    attention: bool = False
    check_attention: bool = False
    preview: bool = False


class CheckFields(BaseModel):
    """The form fields of POST /api/effect beside the image."""

    record: str


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


def make_api(service: CaptionService) -> APIRouter:
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

    @router.post(
        "/api/effect",
        response_model=Records,
        responses=_PROBLEMS,
        openapi_extra=photo_and_record(CheckFields),
        tags=["captions"],
        summary="Check the words of a record",
    )
    async def effect(request: Request) -> Response:
        """Measure of each word of a record's own sentence how much its place in the photo mattered.

        Answers with the record, its words with their `effect`.
        """
        client = client_of(request.scope)
        service.require_room(client)
        (file,), fields = await read_form(request, CheckFields, max_bytes=service.config.max_upload)
        caption = read_record(fields.record)
        work = service.check_words(file.data, caption, client=client)
        checked = await _while_connected(request, work)
        visit_of(request.scope).told = True
        return _Records([served_record(checked, name=file.name, attention=True)])

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
        model = {"name": service.captioner.name, "version": service.captioner.version}
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
    files, fields = await read_form(
        request,
        CaptionFields,
        max_bytes=service.config.max_upload,
        max_files=service.config.queue,
    )
    config = service.captioner.generation.asked(
        beam_size=fields.beam_size, captions=fields.captions, style=fields.style
    )

    async def work(on_place: OnPlace | None = None) -> tuple[list[Caption | ImageError], list[Any]]:
        results = await service.caption(
            [file.data for file in files],
            config,
            client=client,
            on_place=on_place,
            check_attention=fields.check_attention,
        )
        visit_of(request.scope).told = True
        return results, await _records(service, client, files, results, fields)

    if LINES in request.headers.get("accept", ""):
        return await _stream(work)
    results, records = await _while_connected(request, work())
    errors = [result for result in results if isinstance(result, ImageError)]
    if len(errors) == len(results):
        return problem(errors[0], records=records)
    return _Records(records)


async def _records(
    service: CaptionService,
    client: str,
    files: list[Upload],
    results: list[Caption | ImageError],
    fields: CaptionFields,
) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for file, result in zip(files, results, strict=True):
        if isinstance(result, Caption):
            preview = None
            if fields.preview and needs_preview(file.data):
                with suppress(CaptionerError):  # the server is busy: there is the caption at least
                    preview = await service.with_photo(
                        file.data, make_preview, longest=LONGEST_PREVIEW, client=client
                    )
            records.append(
                served_record(result, name=file.name, attention=fields.attention, preview=preview)
            )
        else:
            records.append({"image": file.name, "error": result.record()})
    return records


Work = Callable[[OnPlace], Coroutine[Any, Any, tuple[list[Caption | ImageError], list[Any]]]]


async def _stream(work: Work) -> Response:
    """Answer line by line: how many photos come first, whenever that changes, then the records.

    Whoever stops listening takes its photos out of the queue.

    Raises:
        CaptionerError: the work failed before it had a place in the queue.

    """
    places: asyncio.Queue[int | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def on_place(ahead: int) -> None:
        loop.call_soon_threadsafe(places.put_nowait, ahead)

    task = asyncio.create_task(work(on_place))
    task.add_done_callback(lambda _: places.put_nowait(None))
    try:
        first = await places.get()
    except BaseException:
        task.cancel()
        raise
    if first is None:
        task.result()

    async def lines() -> AsyncIterator[str]:
        ahead, told = first, None
        try:
            while ahead is not None:
                if ahead != told:
                    yield json.dumps({"ahead": ahead}) + "\n"
                ahead, told = await places.get(), ahead
            _, records = await task
            yield json.dumps({"records": records}) + "\n"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # nginx would keep the lines to itself until there are more.
    return StreamingResponse(lines(), media_type=LINES, headers={"X-Accel-Buffering": "no"})


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
