"""The protocol of OpenAI: /v1/chat/completions and /v1/models.

See https://platform.openai.com/docs/api-reference/chat. Fields for language models, such as
`temperature` and `tools`, are ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from captioner_serving.server.api import services_of
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
from captioner_serving.server.request import request_info

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_STARTED = int(time.time())


class ImageURL(BaseModel):
    """The photo of a part: a data URL or a URL."""

    url: str


class Part(BaseModel):
    """A part of a message: text or a photo."""

    type: str
    text: str = ""
    image_url: ImageURL | str | None = None


class ChatMessage(BaseModel):
    """A message of a chat."""

    role: str
    content: str | tuple[Part, ...] | None = None

    def message(self) -> Message:
        """Convert the message to a `Message` of prompt.py."""
        if not isinstance(self.content, tuple):
            return Message(role=self.role, text=self.content or "")
        text = "\n".join(part.text for part in self.content if part.text)
        urls = [part.image_url for part in self.content if part.image_url is not None]
        images = tuple(url.url if isinstance(url, ImageURL) else url for url in urls)
        return Message(role=self.role, text=text, images=images)


class ResponseFormat(BaseModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


class Fields(BaseModel):
    """The fields of POST /v1/chat/completions."""

    model: str | None = None
    messages: tuple[ChatMessage, ...]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None

    def to_prompt(self) -> Prompt:
        """Return the prompt.

        Raises RefusedError: the format is a JSON schema.
        """
        form = "text" if self.response_format is None else self.response_format.type
        if form == "json_schema":
            raise RefusedError(
                "bad-request", "response_format: JSON schemas are not supported; use 'json_object'"
            )
        text, images = current_turn([message.message() for message in self.messages])
        return Prompt(model=self.model, text=text, images=images, is_json=form == "json_object")


@router.post("/v1/chat/completions")
async def complete(request: Request) -> Response:
    """Answer the last turn of a chat."""
    fields = await read_fields(request, Fields)
    reply = await answer(request, fields.to_prompt())
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


async def _events(reply: Answer, head: dict[str, Any], *, with_usage: bool) -> AsyncIterator[str]:
    """Yield server-sent events: role, words, end, usage."""

    def event(choices: list[dict[str, Any]], **members: Any) -> str:
        chunk = {**head, "object": "chat.completion.chunk", "choices": choices, **members}
        return f"data: {json.dumps(chunk)}\n\n"

    def choice(delta: dict[str, str], finish_reason: str | None = None) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]

    yield event(choice({"role": "assistant", "content": ""}))
    for piece in reply.pieces:
        yield event(choice({"content": piece}))
    yield event(choice({}, "stop"))
    if with_usage:
        yield event([], usage=_usage(reply))
    yield "data: [DONE]\n\n"


def _usage(reply: Answer) -> dict[str, int]:
    count = len(reply.pieces)
    return {"prompt_tokens": 0, "completion_tokens": count, "total_tokens": count}


# Models


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the models."""
    return {"object": "list", "data": [_model(name) for name in services_of(request)]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Describe a model."""
    return _model(named_service(request, name).captioner.name)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": "captioner"}
