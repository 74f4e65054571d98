"""The protocol of Ollama: /api/generate, /api/chat, and routes that describe the models.

See https://docs.ollama.com/api. Fields for language models, such as `options` and `tools`, are
ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import AfterValidator, BaseModel
from pydantic_core import PydanticCustomError

from captioner import __version__
from captioner_serving.server.chat import (
    Photos,
    Reply,
    Text,
    answer,
    current_turn,
    model_names,
    named_service,
    read_fields,
)

router = APIRouter(include_in_schema=False)

_LINES = "application/x-ndjson"


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


_STARTED = _now()
_DETAILS = {
    "parent_model": "",
    "format": "safetensors",
    "family": "captioner",
    "families": ["captioner"],
    "parameter_size": "",
    "quantization_level": "",
}


def _check_format(value: object) -> object:
    if value in (None, "", "json") or isinstance(value, dict):
        return value
    raise PydanticCustomError("format", "it should be 'json' or a JSON schema")


class Fields(BaseModel):
    """The fields that /api/generate and /api/chat share."""

    model: str | None = None
    stream: bool | None = True
    format: Annotated[Any, AfterValidator(_check_format)] = None


class GenerateFields(Fields):
    """The fields of POST /api/generate."""

    prompt: Text = ""
    images: Photos = ()


class ChatMessage(BaseModel):
    """A message of POST /api/chat."""

    role: str = "user"
    content: Text = ""
    images: Photos = ()


class ChatFields(Fields):
    """The fields of POST /api/chat."""

    messages: tuple[ChatMessage, ...] = ()


class ShowFields(BaseModel):
    """The fields of POST /api/show; older clients send `name`."""

    model: str | None = None
    name: str | None = None


@router.post("/api/generate")
async def generate(request: Request) -> Response:
    """Answer a prompt. Without prompt and image, answer only that the model is loaded."""
    fields = await read_fields(request, GenerateFields)
    if not fields.prompt and not fields.images:
        return _loaded(request, fields, {"response": ""})
    reply = await answer(request, fields.model, fields.images, fields.format)
    return _respond(reply, fields, lambda text: {"response": text})


@router.post("/api/chat")
async def chat(request: Request) -> Response:
    """Answer the last turn of a chat. Without messages, answer only that the model is loaded."""
    fields = await read_fields(request, ChatFields)
    if not fields.messages:
        return _loaded(request, fields, _message(""))
    images = current_turn([(message.role, message.images) for message in fields.messages])
    reply = await answer(request, fields.model, images, fields.format)
    return _respond(reply, fields, _message)


def _message(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}}


def _loaded(request: Request, fields: Fields, content: dict[str, Any]) -> Response:
    name, _ = named_service(request, fields.model)
    return JSONResponse({**_head(name), **content, "done": True, "done_reason": "load"})


def _respond(reply: Reply, fields: Fields, content: Callable[[str], dict[str, Any]]) -> Response:
    head, nanoseconds = _head(reply.model), round(reply.seconds * 1e9)
    end = {
        "done": True,
        "done_reason": "stop",
        "total_duration": nanoseconds,
        "load_duration": 0,
        "prompt_eval_count": 0,
        "prompt_eval_duration": 0,
        "eval_count": reply.tokens,
        "eval_duration": nanoseconds,
    }
    if fields.stream is False:
        return JSONResponse({**head, **content(reply.text), **end})

    async def lines() -> AsyncIterator[str]:
        yield json.dumps({**head, **content(reply.text), "done": False}) + "\n"
        yield json.dumps({**head, **content(""), **end}) + "\n"

    return StreamingResponse(lines(), media_type=_LINES)


def _head(model: str) -> dict[str, str]:
    return {"model": f"{model}:latest", "created_at": _now()}


# Models


@router.get("/api/tags")
@router.get("/api/ps")
async def tags(request: Request) -> dict[str, Any]:
    """List the models, which are all loaded."""
    return {"models": [_model(request, name) for name in model_names(request)]}


@router.post("/api/show")
async def show(request: Request) -> dict[str, Any]:
    """Describe a model; clients check for "vision" in its capabilities."""
    fields = await read_fields(request, ShowFields)
    named_service(request, fields.model or fields.name)
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _DETAILS,
        "model_info": {"general.architecture": "captioner"},
        "capabilities": ["completion", "vision"],
        "modified_at": _STARTED,
    }


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Return the version of Captioner."""
    return {"version": __version__}


def _model(request: Request, name: str) -> dict[str, Any]:
    version = named_service(request, name)[1].captioner.version
    name = f"{name}:latest"
    return {
        "name": name,
        "model": name,
        "modified_at": _STARTED,
        "size": 0,
        "digest": hashlib.sha256(f"{name} {version}".encode()).hexdigest(),
        "details": _DETAILS,
    }
