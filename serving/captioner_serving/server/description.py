"""The OpenAPI description of the API: request bodies, answers and errors."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from captioner_serving.server.errors import PROBLEM_TYPE
from captioner_serving.server.records import FailedRecord, ServedRecord


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    request: str
    records: list[FailedRecord] | None = None


class Records(BaseModel):
    """A record for each image, in order; see docs/records.md."""

    records: list[ServedRecord | FailedRecord]


class Health(BaseModel):
    """The server is ready: its models work, even if the queue is full."""

    status: Literal["ready"]
    version: str
    model: dict[str, str]


PHOTO = {"type": "string", "format": "binary"}
PHOTOS = {
    "type": "array",
    "items": PHOTO,
    "description": "one photo or several: JPEG, PNG, WebP, AVIF, HEIC, BMP, GIF or TIFF",
}


def form(
    fields: type[BaseModel], image: dict[str, Any] = PHOTO, *, is_required: bool = True
) -> dict[str, Any]:
    """Return the description of a form with an image."""
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


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """Change the media type of errors in an OpenAPI description to that of problems."""
    for path in schema["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                content = answer.get("content", {})
                if status >= "400" and "application/json" in content:
                    content[PROBLEM_TYPE] = content.pop("application/json")
    return schema


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "the request is invalid",
        408: "the body arrived too slowly",
        413: "more bytes or images than the server accepts",
        415: "not an image in a known format, or not multipart/form-data",
        422: "a damaged, empty or too large image, or a field out of range",
        500: "the server failed; the log has the reason",
        503: "busy, short of memory or shutting down; retry after Retry-After seconds",
    }.items()
}


def picture(kind: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI answers of a route that draws a picture."""
    return {200: {"description": "the picture", "content": {kind: {"schema": PHOTO}}}, **PROBLEMS}
