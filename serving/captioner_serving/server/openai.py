"""The protocol of OpenAI: /v1/chat/completions, /v1/responses and /v1/models.

See https://platform.openai.com/docs/api-reference/chat. Fields for language models, such as
`temperature` and `tools`, are ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

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
from captioner_serving.server.request import request_info

router = APIRouter(include_in_schema=False)

_STARTED = int(time.time())


def _to_parts(value: object) -> object:
    """Convert a text or one part to a list of parts."""
    if isinstance(value, str):
        value = {"type": "text", "text": value}
    value = [value] if isinstance(value, dict) else value
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


class _Format(_Schema):  # /v1/responses has the schema in `schema`
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: _Schema = _Schema()


class _ChatFields(BaseModel):
    model: str | None = None
    messages: tuple[_Message, ...]
    stream: bool = False
    stream_options: dict[str, Any] = Field(default_factory=dict)
    response_format: _Format = _Format()


class _TextOptions(BaseModel):
    format: _Format = _Format()


class _ResponseFields(BaseModel):
    model: str | None = None
    # A text or a list of messages.
    input: Annotated[
        tuple[_Message, ...],
        BeforeValidator(lambda value: [{"content": value}] if isinstance(value, str) else value),
    ]
    stream: bool = False
    text: _TextOptions = _TextOptions()


async def _answer(
    request: Request, model: str | None, messages: tuple[_Message, ...], form: _Format
) -> Reply:
    turns = [
        (message.role, tuple(part.image_url for part in message.content if part.image_url))
        for message in messages
    ]
    schemas = {
        "text": None,
        "json_object": "json",
        "json_schema": form.content or form.json_schema.content,
    }
    return await answer(request, model, current_turn(turns), schemas[form.type])


def _events(events: Iterable[str]) -> Response:
    return Response("".join(f"{event}\n\n" for event in events), media_type="text/event-stream")


@router.post("/v1/chat/completions")
async def complete(request: Request) -> Response:
    """Answer the last turn of a chat."""
    fields = await read_fields(request, _ChatFields)
    reply = await _answer(request, fields.model, fields.messages, fields.response_format)
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
    lines = [f"data: {json.dumps({**head, **chunk})}" for chunk in chunks]
    return _events([*lines, "data: [DONE]"])


@router.post("/v1/responses")
async def respond(request: Request) -> Response:
    """Answer the last turn of a chat, in the form of OpenAI's newer API."""
    fields = await read_fields(request, _ResponseFields)
    reply = await _answer(request, fields.model, fields.input, fields.text.format)
    identifier = request_info(request.scope).id
    part = {"type": "output_text", "text": reply.text, "annotations": []}
    item = {
        "id": f"msg_{identifier}", "type": "message", "status": "completed", "role": "assistant",
        "content": [part],
    }  # fmt: skip
    usage = {
        "input_tokens": 0, "output_tokens": reply.tokens, "total_tokens": reply.tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    whole = {
        "id": f"resp_{identifier}", "object": "response", "created_at": int(time.time()),
        "status": "completed", "model": reply.model, "output": [item], "tools": [],
        "tool_choice": "auto", "parallel_tool_calls": False, "usage": usage,
    }  # fmt: skip
    if not fields.stream:
        return JSONResponse(whole)
    at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": whole | {"status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"content": []}},
        {"type": "response.content_part.added", **at, "part": part | {"text": ""}},
        {"type": "response.output_text.delta", **at, "delta": reply.text, "logprobs": []},
        {"type": "response.output_text.done", **at, "text": reply.text, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return _events(
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}"
        for number, event in enumerate(events)
    )


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
