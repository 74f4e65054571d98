"""The protocol of OpenAI: /v1/chat/completions and /v1/models.

See https://platform.openai.com/docs/api-reference/chat. Fields for language models, such as
`temperature` and `tools`, are ignored.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from captioner_serving.server.chat import (
    Photo,
    Text,
    answer,
    current_turn,
    model_names,
    model_of,
    read_fields,
)
from captioner_serving.server.errors import request_info

router = APIRouter(include_in_schema=False)

_STARTED = int(time.time())


def _to_parts(value: object) -> object:
    """Convert a text or one part to a list of parts."""
    value = [value] if isinstance(value, str | dict) else value
    if isinstance(value, list):
        return [{"text": part} if isinstance(part, str) else part for part in value]
    raise PydanticCustomError("parts", "it should be a text or a list of parts")


class _Part(BaseModel):
    text: Text = ""
    image_url: Photo | None = None


class _Message(BaseModel):
    role: str = "user"
    content: Annotated[tuple[_Part, ...], BeforeValidator(_to_parts)] = ()


class _Schema(BaseModel):
    content: dict[str, Any] = Field(default_factory=dict, alias="schema")


class _Format(BaseModel):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: _Schema = _Schema()


class _ChatFields(BaseModel):
    model: str | None = None
    messages: tuple[_Message, ...]
    stream: bool = False
    stream_options: dict[str, Any] = Field(default_factory=dict)
    response_format: _Format = _Format()


@router.post("/v1/chat/completions")
async def complete(request: Request) -> Response:
    """Answer the last turn of a chat."""
    fields = await read_fields(request, _ChatFields)
    form = fields.response_format
    kinds: dict[str, dict[str, Any] | str] = {"text": "", "json_object": "json"}
    messages = [
        (message.role, [part.image_url for part in message.content if part.image_url])
        for message in fields.messages
    ]
    reply = await answer(
        request,
        fields.model,
        current_turn(messages),
        kinds.get(form.type, form.json_schema.content),
    )
    head = {
        "id": f"chatcmpl-{request_info(request.scope).id}",
        "created": int(time.time()),
        "model": reply.model,
    }
    usage = {
        "prompt_tokens": 0, "completion_tokens": reply.tokens, "total_tokens": reply.tokens
    }  # fmt: skip

    def choices(finish_reason: str | None, **message: Any) -> list[dict[str, Any]]:
        return [{"index": 0, "logprobs": None, "finish_reason": finish_reason, **message}]

    if not fields.stream:
        message = {"role": "assistant", "content": reply.text, "refusal": None}
        whole = {"choices": choices("stop", message=message), "usage": usage}
        return JSONResponse({**head, "object": "chat.completion", **whole})
    chunks: list[dict[str, Any]] = [
        {"choices": choices(None, delta={"role": "assistant", "content": ""})},
        {"choices": choices(None, delta={"content": reply.text})},
        {"choices": choices("stop", delta={})},
    ]
    if fields.stream_options.get("include_usage"):
        chunks.append({"choices": [], "usage": usage})
    head["object"] = "chat.completion.chunk"
    lines = [*(json.dumps({**head, **chunk}) for chunk in chunks), "[DONE]"]
    body = "".join(f"data: {line}\n\n" for line in lines)
    return Response(body, media_type="text/event-stream")


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the models."""
    return {"object": "list", "data": [_model(name) for name in model_names(request)]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Describe a model."""
    return _model(model_of(request, name)[0])


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "captioner"}
