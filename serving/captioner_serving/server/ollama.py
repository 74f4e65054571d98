"""The protocol of Ollama: /api/generate, /api/chat, and routes that describe the models.

See https://docs.ollama.com/api. Fields for language models, such as `options` and `tools`, are
ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from captioner import __version__
from captioner.predictor import Captioner
from captioner_serving.server.api import LINES, services_of
from captioner_serving.server.problems import RefusedError
from captioner_serving.server.prompt import (
    Answer,
    Message,
    Prompt,
    answer,
    current_turn,
    named_service,
    read_fields,
)

__all__ = ["router"]

router = APIRouter(include_in_schema=False)


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


class Fields(BaseModel):
    """The fields that /api/generate and /api/chat share."""

    model: str | None = None
    stream: bool | None = True
    format: Literal["", "json"] | dict[str, Any] | None = None

    def to_prompt(self, text: str, images: tuple[str, ...]) -> Prompt:
        """Return the prompt.

        Raises RefusedError: the format is a JSON schema.
        """
        if isinstance(self.format, dict):
            raise RefusedError("bad-request", "format: JSON schemas are not supported; use 'json'")
        return Prompt(model=self.model, text=text, images=images, is_json=self.format == "json")


class GenerateFields(Fields):
    """The fields of POST /api/generate."""

    prompt: str | None = None
    images: tuple[str, ...] | None = None


class ChatMessage(BaseModel):
    """A message of POST /api/chat."""

    role: str
    content: str | None = None
    images: tuple[str, ...] | None = None


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
    reply = await answer(request, fields.to_prompt(fields.prompt or "", fields.images or ()))
    return _respond(reply, fields, lambda text: {"response": text})


@router.post("/api/chat")
async def chat(request: Request) -> Response:
    """Answer the last turn of a chat. Without messages, answer only that the model is loaded."""
    fields = await read_fields(request, ChatFields)
    if not fields.messages:
        return _loaded(request, fields, _message(""))
    messages = [
        Message(role=message.role, text=message.content or "", images=message.images or ())
        for message in fields.messages
    ]
    reply = await answer(request, fields.to_prompt(*current_turn(messages)))
    return _respond(reply, fields, _message)


def _message(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}}


def _loaded(request: Request, fields: Fields, content: dict[str, Any]) -> Response:
    name = named_service(request, fields.model).captioner.name
    return JSONResponse({**_head(name), **content, "done": True, "done_reason": "load"})


def _respond(reply: Answer, fields: Fields, content: Callable[[str], dict[str, Any]]) -> Response:
    head, nanoseconds = _head(reply.model), round(reply.seconds * 1e9)
    end = {
        "done": True,
        "done_reason": "stop",
        "total_duration": nanoseconds,
        "load_duration": 0,
        "prompt_eval_count": 0,
        "prompt_eval_duration": 0,
        "eval_count": len(reply.pieces),
        "eval_duration": nanoseconds,
    }
    if fields.stream is False:
        return JSONResponse({**head, **content(reply.text), **end})

    async def lines() -> AsyncIterator[str]:
        for piece in reply.pieces:
            yield json.dumps({**head, **content(piece), "done": False}) + "\n"
        yield json.dumps({**head, **content(""), **end}) + "\n"

    return StreamingResponse(lines(), media_type=LINES)


def _head(model: str) -> dict[str, str]:
    return {"model": f"{model}:latest", "created_at": _now()}


# Models


@router.get("/api/tags")
@router.get("/api/ps")
async def tags(request: Request) -> dict[str, Any]:
    """List the models, which are all loaded."""
    return {"models": [_model(service.captioner) for service in services_of(request).values()]}


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


def _model(captioner: Captioner) -> dict[str, Any]:
    name = f"{captioner.name}:latest"
    return {
        "name": name,
        "model": name,
        "modified_at": _STARTED,
        "size": 0,
        "digest": hashlib.sha256(f"{name} {captioner.version}".encode()).hexdigest(),
        "details": _DETAILS,
    }
