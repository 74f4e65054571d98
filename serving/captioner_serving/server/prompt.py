"""Answer a prompt with a photo: the common part of the protocols of Ollama and OpenAI.

The model writes captions and cannot follow instructions. The prompt only selects the answer: the
sentence, or its keywords.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from captioner.caption import Caption
from captioner.paths import is_web_address
from captioner_serving.batch.wording import sentence
from captioner_serving.decoding.decoded import Readable
from captioner_serving.server.api import services_of, while_connected
from captioner_serving.server.body import decode_photo, parse_object, too_large
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.links import WebPhoto
from captioner_serving.server.problems import NO_URLS, RefusedError, bad_fields
from captioner_serving.server.request import client_of, request_info
from captioner_serving.server.service import CaptionService

__all__ = ["Answer", "Message", "Prompt", "answer", "current_turn", "named_service", "read_fields"]

Fields = TypeVar("Fields", bound=BaseModel)

_KEYWORDS = re.compile(r"(?<!\bno )(?<!\bwithout )\b(keyword|tag|label)s?\b", re.IGNORECASE)
_ANY_MODEL = (None, "", "null")  # TagGUI sends "null"


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of a chat.

    role: "system", "user", "assistant" or "tool".
    text: the text.
    images: the photos, each in base64, as a data URL or a URL.
    """

    role: str
    text: str = ""
    images: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt of a client.

    model: the name of the model, from the client.
    text: the user's text.
    images: the user's photos, each in base64, as a data URL or a URL.
    is_json: the answer must be a JSON object.
    """

    model: str | None
    text: str
    images: Sequence[str]
    is_json: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a prompt.

    model: the name of the model.
    text: a sentence, keywords separated by commas, or a JSON object with either.
    seconds: from the end of the upload to the caption.
    """

    model: str
    text: str
    seconds: float

    @property
    def pieces(self) -> list[str]:
        """The text split into words, for a stream."""
        return re.findall(r"\s*\S+", self.text) if self.text else []


async def read_fields(request: Request, fields: type[Fields]) -> Fields:
    """Read a JSON body with any Content-Type.

    Raises RefusedError: the queue is full (checked first), the body is not a JSON object, or a
        field has a wrong type.
    """
    next(iter(services_of(request).values())).require_room(client_of(request.scope))
    values = parse_object(await request.body())
    try:
        return fields.model_validate(values)
    except ValidationError as error:
        raise RefusedError("bad-request", bad_fields(error.errors()).detail) from None


def current_turn(messages: Sequence[Message]) -> tuple[str, tuple[str, ...]]:
    """Return the text and the photos of the user's last turn.

    A turn may have several messages, such as one with the photo and one with the text. If it has no
    photos, those of the last earlier message with photos are returned.
    """
    last = max(
        (at for at, message in enumerate(messages) if message.role == "assistant"), default=-1
    )
    turn = [message for message in messages[last + 1 :] if message.role == "user"]
    text = "\n".join(message.text for message in turn)
    images = tuple(image for message in turn for image in message.images)
    earlier = (message.images for message in reversed(messages[: last + 1]) if message.images)
    return text, images or next(earlier, ())


def named_service(request: Request, name: str | None) -> CaptionService:
    """Return the service of a model, by NAME or NAME:latest.

    Raises RefusedError: there is no such model.
    """
    services = services_of(request)
    if name in _ANY_MODEL:
        return next(iter(services.values()))
    for candidate in (name, name.removesuffix(":latest")):
        if candidate in services:
            return services[candidate]
    raise RefusedError("no-such-model", f"model {name[:40]!r} not found: use {', '.join(services)}")


async def answer(request: Request, prompt: Prompt) -> Answer:
    """Caption the photo of a prompt.

    Raises:
        RefusedError: there is no such model, or not exactly one photo.
        CaptionerError: see CaptionService.caption_one.
    """
    service = named_service(request, prompt.model)
    is_keywords = _KEYWORDS.search(prompt.text) is not None
    if is_keywords:
        service.captioner.check_trust(0)
    photo = _photo(service.config, prompt.images)
    start = time.monotonic()
    work = service.caption_one(
        photo, service.captioner.generation.for_request(), client=client_of(request.scope)
    )
    caption = await while_connected(request, work)
    request_info(request.scope).is_reported = True
    write = _keywords if is_keywords else _sentence
    text = write(caption, is_json=prompt.is_json)
    return Answer(model=service.captioner.name, text=text, seconds=time.monotonic() - start)


def _photo(config: ServerConfig, images: Sequence[str]) -> bytes | Readable:
    if len(images) != 1:
        count = "no image" if not images else f"{len(images)} images"
        raise RefusedError("bad-request", f"the prompt has {count}; send exactly one")
    if not is_web_address(images[0]):
        photo = decode_photo(images[0])
        if len(photo) > config.max_upload:
            raise too_large(config.max_upload)
        return photo
    if not config.allow_urls:
        raise RefusedError("forbidden", NO_URLS)
    return WebPhoto(images[0], config.max_upload)


def _sentence(caption: Caption, *, is_json: bool) -> str:
    text = sentence(caption.text)
    return json.dumps({"caption": text}) if is_json else text


def _keywords(caption: Caption, *, is_json: bool) -> str:
    """Return the keywords, separated by commas, or as JSON in the form that PhotoPrism expects."""
    keywords = caption.keywords()
    if not is_json:
        return ", ".join(keywords)
    trusts = {word.text.lower(): word.trust for word in caption.words}
    labels = [{"name": name, "confidence": round(trusts[name] or 0, 4)} for name in keywords]
    return json.dumps({"labels": labels})
