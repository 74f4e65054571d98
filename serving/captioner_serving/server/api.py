"""The HTTP API: captions, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from captioner import __version__
from captioner.captioner import Captioner
from captioner.errors import ImageError
from captioner.generation.config import MAX_BEAM_SIZE, GenerationConfig
from captioner_serving.networks import client_of
from captioner_serving.server.bodies import Upload, read_parts
from captioner_serving.server.errors import PROBLEM_TYPE, RefusedError, bad_fields, problem
from captioner_serving.server.records import Health, Problem, Records, needs_preview, served_record
from captioner_serving.server.service import CaptionService, Photo

T = TypeVar("T")
Fields = TypeVar("Fields", bound=BaseModel)

router = APIRouter(generate_unique_id_function=lambda route: route.path.rpartition("/")[2])


def services_of(request: Request) -> dict[str, CaptionService]:
    """Return the services by the names of their models; the first is the default."""
    services: dict[str, CaptionService] = request.app.state.services
    return services


def first_service(request: Request) -> CaptionService:
    """Return the service of the default model."""
    return next(iter(services_of(request).values()))


def named_service(request: Request, name: str | None) -> CaptionService:
    """Return the service of a model; None: the default model."""
    services = services_of(request)
    if name is None:
        return first_service(request)
    if name not in services:
        detail = f"model {name[:40]!r} not found: use {', '.join(services)}"
        raise RefusedError("no-such-model", detail)
    return services[name]


Service = Annotated[CaptionService, Depends(first_service)]


# Description

PHOTO = {"type": "string", "format": "binary"}
PHOTOS = {
    "type": "array",
    "items": PHOTO,
    "description": "one photo or several: JPEG, PNG, WebP, AVIF, HEIC, BMP, GIF or TIFF",
}


def form(
    fields: type[BaseModel], image: dict[str, Any] = PHOTO, *, is_required: bool = True
) -> dict[str, Any]:
    """Return the OpenAPI description of a form with an image."""
    properties = {"image": image, **fields.model_json_schema()["properties"]}
    posted = {
        "type": "object",
        "required": ["image"] if is_required else [],
        "properties": properties,
        "additionalProperties": False,
    }
    return {
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": posted}}}
    }


_PROBLEM = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"content": {PROBLEM_TYPE: {"schema": _PROBLEM}}}
    for status in (400, 404, 408, 413, 415, 422, 500, 503)
}


# Requests


class SearchFields(BaseModel):
    """The fields of captions and pictures."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=1000)] | None = None
    beam_size: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] | None = None
    captions: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] = 1
    style: Annotated[str, Field(max_length=100)] | None = None

    def settings(self, captioner: Captioner) -> GenerationConfig:
        """Return the generation settings for a captioner."""
        return captioner.generation.for_request(
            beam_size=self.beam_size, captions=self.captions, style=self.style
        )


class CaptionFields(SearchFields):
    """The fields of POST /api/caption, without the images."""

    image_url: Annotated[str, Field(max_length=8000)] | None = None
    attention: bool = False
    check_attention: bool = False
    minimum_trust: Annotated[float, Field(ge=0, le=1)] | None = None
    preview: bool = False

    def settings(self, captioner: Captioner) -> GenerationConfig:
        """See SearchFields."""
        captioner.check_trust(self.minimum_trust)
        return super().settings(captioner)


async def read_photos(
    request: Request, service: CaptionService, fields: type[Fields], *, max_files: int = 1
) -> tuple[list[Upload], Fields]:
    """Read a form, after a check that the queue has room for an image of the client."""
    if request.query_params:
        name = next(iter(request.query_params))[:40]
        raise RefusedError(
            "bad-request", f"{name!r} is in the query of the URL: send it as a form field"
        )
    service.check_capacity(client_of(request.scope))
    files, values = await read_parts(
        request,
        key="image",
        names=tuple(fields.model_fields),
        max_bytes=service.config.max_upload,
        max_files=max_files,
    )
    if not files and "image_url" not in values:
        detail = "there is no image: send one, such as curl -F image=@photo.jpg"
        raise RefusedError("bad-request", detail)
    try:
        return files, fields.model_validate(values)
    except ValidationError as error:
        raise bad_fields(error.errors()) from None


# Captions


@router.post(
    "/api/caption",
    response_model=Records,
    responses=PROBLEMS,
    openapi_extra=form(CaptionFields, PHOTOS, is_required=False),
    tags=["captions"],
    summary="Caption one image or many",
)
async def caption(request: Request, service: Service) -> Response:
    """Return a record for each image, in order; a failed image has an error in its record.

    The status is 200 if any image was captioned, otherwise that of the first error. Example:
    `curl -F image=@photo.jpg http://127.0.0.1:7860/api/caption`.
    """
    count = service.config.queue
    files, fields = await read_photos(request, service, CaptionFields, max_files=count)
    service = named_service(request, fields.model)
    photos = [
        Photo(service.readable(data), name, has_preview=fields.preview and needs_preview(data))
        for name, data in files
    ]
    if (url := fields.image_url) is not None:
        photos.append(Photo(service.readable(url), url, has_preview=fields.preview))
    work = service.caption(
        photos,
        fields.settings(service.captioner),
        client=client_of(request.scope),
        check_attention=fields.check_attention,
    )
    results = await while_connected(request, work)
    records = [
        {"image": photo.name, "error": result.record()}
        if isinstance(result, ImageError)
        else served_record(
            result, name=photo.name, attention=fields.attention,
            minimum_trust=fields.minimum_trust, preview=photo.preview,
        )
        for photo, result in zip(photos, results, strict=True)
    ]  # fmt: skip
    errors = [result for result in results if isinstance(result, ImageError)]
    if len(errors) == len(results):
        return problem(errors[0], records=records)
    # Not validated, which would take longer than making them.
    return Response(to_json({"records": records}), media_type="application/json")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. If the client disconnects, cancel it, so that its images leave the queue."""
    task = asyncio.create_task(work)
    disconnect = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedError("client-gone", "the client has disconnected")
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# Operation


@router.get("/api/health/live", summary="Check that the process answers", tags=["operation"])
async def live() -> dict[str, str]:
    """Answer while the process is running. Needs no token."""
    return {"status": "live"}


@router.get("/api/health", include_in_schema=False)
@router.get(
    "/api/health/ready",
    response_model=Health,
    responses={503: PROBLEMS[503]},
    summary="Check that the models work",
    tags=["operation"],
)
async def health(request: Request, service: Service) -> dict[str, Any]:
    """Return ready if the thread of every model is running, and none is stuck in a batch."""
    for model_service in services_of(request).values():
        model_service.check()
    model = {"name": service.captioner.name, "version": service.captioner.version}
    return {"status": "ready", "version": __version__, "model": model}


@router.get("/metrics", summary="Prometheus metrics", response_class=Response, tags=["operation"])
def metrics(service: Service) -> Response:
    """Return metrics of requests, latency, batch sizes, the queue and errors."""
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
