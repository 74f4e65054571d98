"""The protocol of OpenAI: /v1/chat/completions, /v1/responses and /v1/models.

See https://platform.openai.com/docs/api-reference/chat. Fields for language models, such as
`temperature` and `tools`, are ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from captioner_serving.server.chat import (
    Images,
    Photo,
    Reply,
    Text,
    answer,
    current_turn,
    model_names,
    named_service,
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


def _to_messages(value: object) -> object:
    """Convert the input of /v1/responses, a text or a list, to messages."""
    return [{"content": value}] if isinstance(value, str) else value


class Part(BaseModel):
    """A part of a message: text or a photo."""

    text: Text = ""
    image_url: Photo | None = None


class ChatMessage(BaseModel):
    """A message of a chat."""

    role: str = "user"
    content: Annotated[tuple[Part, ...], BeforeValidator(_to_parts)] = ()

    @property
    def images(self) -> Images:
        """The photos of its parts."""
        return tuple(part.image_url for part in self.content if part.image_url is not None)


class Schema(BaseModel):
    """A JSON schema, with its name."""

    content: dict[str, Any] = Field(default_factory=dict, alias="schema")


class ResponseFormat(BaseModel):
    """The form of the answer; /v1/responses has the schema in `schema`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: Schema = Schema()
    content: dict[str, Any] = Field(default_factory=dict, alias="schema")

    @property
    def form(self) -> dict[str, Any] | str | None:
        """As in Ollama's protocol: "json", a JSON schema, or None for a text."""
        if self.type == "json_schema":
            return self.content or self.json_schema.content
        return "json" if self.type == "json_object" else None


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


class Fields(BaseModel):
    """The fields of POST /v1/chat/completions."""

    model: str | None = None
    messages: tuple[ChatMessage, ...]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat = ResponseFormat()


@router.post("/v1/chat/completions")
async def complete(request: Request) -> Response:
    """Answer the last turn of a chat."""
    fields = await read_fields(request, Fields)
    reply = await _answer(request, fields.model, fields.messages, fields.response_format)
    head = {
        "id": f"chatcmpl-{request_info(request.scope).id}",
        "created": int(time.time()),
        "model": reply.model,
    }
    if fields.stream:
        with_usage = fields.stream_options is not None and fields.stream_options.include_usage
        events = _events(reply, head, with_usage=with_usage)
        return StreamingResponse(events, media_type="text/event-stream")
    message = {"role": "assistant", "content": reply.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    answered = {"object": "chat.completion", "choices": [choice], "usage": _usage(reply)}
    return JSONResponse({**head, **answered})


async def _answer(
    request: Request,
    model: str | None,
    messages: Sequence[ChatMessage],
    response_format: ResponseFormat,
) -> Reply:
    images = current_turn([(message.role, message.images) for message in messages])
    return await answer(request, model, images, response_format.form)


async def _events(reply: Reply, head: dict[str, Any], *, with_usage: bool) -> AsyncIterator[str]:
    """Yield server-sent events: role, text, end, usage."""

    def event(choices: list[dict[str, Any]], **members: Any) -> str:
        chunk = {**head, "object": "chat.completion.chunk", "choices": choices, **members}
        return f"data: {json.dumps(chunk)}\n\n"

    def choice(delta: dict[str, str], finish_reason: str | None = None) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]

    yield event(choice({"role": "assistant", "content": ""}))
    yield event(choice({"content": reply.text}))
    yield event(choice({}, "stop"))
    if with_usage:
        yield event([], usage=_usage(reply))
    yield "data: [DONE]\n\n"


def _usage(reply: Reply) -> dict[str, int]:
    return {"prompt_tokens": 0, "completion_tokens": reply.tokens, "total_tokens": reply.tokens}


# Responses


class TextOptions(BaseModel):
    """The member `text` of POST /v1/responses."""

    format: ResponseFormat = ResponseFormat()


class ResponseFields(BaseModel):
    """The fields of POST /v1/responses."""

    model: str | None = None
    input: Annotated[tuple[ChatMessage, ...], BeforeValidator(_to_messages)]
    stream: bool = False
    text: TextOptions = TextOptions()


@router.post("/v1/responses")
async def respond(request: Request) -> Response:
    """Answer the last turn of a chat, in the form of OpenAI's newer API."""
    fields = await read_fields(request, ResponseFields)
    reply = await _answer(request, fields.model, fields.input, fields.text.format)
    identifier = request_info(request.scope).id
    part = {"type": "output_text", "text": reply.text, "annotations": []}
    item = {
        "id": f"msg_{identifier}", "type": "message", "status": "completed", "role": "assistant",
        "content": [part],
    }  # fmt: skip
    counts = {"input_tokens": 0, "output_tokens": reply.tokens, "total_tokens": reply.tokens}
    details: dict[str, Any] = {
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    whole = {
        "id": f"resp_{identifier}", "object": "response", "created_at": int(time.time()),
        "status": "completed", "model": reply.model, "output": [item], "tools": [],
        "tool_choice": "auto", "parallel_tool_calls": False, "usage": counts | details,
    }  # fmt: skip
    if not fields.stream:
        return JSONResponse(whole)
    at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    empty = part | {"text": ""}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": whole | {"status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"content": []}},
        {"type": "response.content_part.added", **at, "part": empty},
        {"type": "response.output_text.delta", **at, "delta": reply.text, "logprobs": []},
        {"type": "response.output_text.done", **at, "text": reply.text, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    lines = [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
        for number, event in enumerate(events)
    ]
    return Response("".join(lines), media_type="text/event-stream")


# Models


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the models."""
    return {"object": "list", "data": [_model(name) for name in model_names(request)]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Describe a model."""
    return _model(named_service(request, name)[0])


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "captioner"}
