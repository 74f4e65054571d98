"""The protocol of Ollama: /api/generate, /api/chat, and routes that describe the models.

See https://docs.ollama.com/api. Fields for language models, such as `options` and `tools`, are
ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic_core import PydanticCustomError

from captioner import __version__
from captioner_serving.server.chat import (
    Photo,
    Reply,
    Text,
    answer,
    current_turn,
    model_names,
    model_of,
    read_fields,
)

router = APIRouter(include_in_schema=False)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


_STARTED = _now()
_Content = Callable[[str], dict[str, Any]]  # the member of an answer with its text
_DETAILS = {
    "parent_model": "", "format": "safetensors", "family": "captioner", "families": ["captioner"],
    "parameter_size": "", "quantization_level": "",
}  # fmt: skip


def _check_format(value: object) -> object:
    if value in ("", "json") or isinstance(value, dict):
        return value
    raise PydanticCustomError("format", "it should be 'json' or a JSON schema")


_Photos = Annotated[
    tuple[Photo, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


class _Fields(BaseModel):
    model: str | None = None
    stream: bool = True
    format: Annotated[Any, AfterValidator(_check_format)] = ""


class _GenerateFields(_Fields):
    prompt: Text = ""
    images: _Photos = ()


class _Message(BaseModel):
    role: str = "user"
    content: Text = ""
    images: _Photos = ()


class _ChatFields(_Fields):
    messages: tuple[_Message, ...] = ()


class _ShowFields(BaseModel):
    model: str | None = None
    name: str | None = None  # of older clients


@router.post("/api/generate")
async def generate(request: Request) -> Response:
    """Answer a prompt. Without prompt and image, answer only that the model is loaded."""
    fields = await read_fields(request, _GenerateFields)
    if not fields.prompt and not fields.images:
        return _loaded(request, fields, _response)
    reply = await answer(request, fields.model, fields.images, fields.format)
    return _respond(reply, fields, _response)


@router.post("/api/chat")
async def chat(request: Request) -> Response:
    """Answer the last turn of a chat. Without messages, answer only that the model is loaded."""
    fields = await read_fields(request, _ChatFields)
    if not fields.messages:
        return _loaded(request, fields, _message)
    images = current_turn([(message.role, message.images) for message in fields.messages])
    reply = await answer(request, fields.model, images, fields.format)
    return _respond(reply, fields, _message)


def _response(text: str) -> dict[str, Any]:
    return {"response": text}


def _message(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}}


def _loaded(request: Request, fields: _Fields, content: _Content) -> Response:
    head = _head(model_of(request, fields.model)[0])
    return JSONResponse({**head, **content(""), "done": True, "done_reason": "load"})


def _respond(reply: Reply, fields: _Fields, content: _Content) -> Response:
    head, nanoseconds = _head(reply.model), round(reply.seconds * 1e9)
    end = {
        "done": True, "done_reason": "stop", "total_duration": nanoseconds, "load_duration": 0,
        "prompt_eval_count": 0, "prompt_eval_duration": 0, "eval_count": reply.tokens,
        "eval_duration": nanoseconds,
    }  # fmt: skip
    if not fields.stream:
        return JSONResponse({**head, **content(reply.text), **end})
    lines = ({**head, **content(reply.text), "done": False}, {**head, **content(""), **end})
    body = "".join(f"{json.dumps(line)}\n" for line in lines)
    return Response(body, media_type="application/x-ndjson")


def _head(model: str) -> dict[str, str]:
    return {"model": f"{model}:latest", "created_at": _now()}


@router.get("/api/tags")
@router.get("/api/ps")
async def tags(request: Request) -> dict[str, Any]:
    """List the models, which are all loaded."""
    return {"models": [_model(request, name) for name in model_names(request)]}


@router.post("/api/show")
async def show(request: Request) -> dict[str, Any]:
    """Describe a model; clients check for "vision" in its capabilities."""
    fields = await read_fields(request, _ShowFields)
    model_of(request, fields.model or fields.name)
    return {
        "details": _DETAILS, "model_info": {"general.architecture": "captioner"},
        "capabilities": ["completion", "vision"], "modified_at": _STARTED,
    }  # fmt: skip


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Return the version of Captioner."""
    return {"version": __version__}


def _model(request: Request, name: str) -> dict[str, Any]:
    version, name = model_of(request, name)[1].captioner.version, f"{name}:latest"
    digest = hashlib.sha256(f"{name} {version}".encode()).hexdigest()
    return {
        "name": name, "model": name, "modified_at": _STARTED, "size": 0, "digest": digest,
        "details": _DETAILS,
    }  # fmt: skip
