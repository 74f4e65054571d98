"""Answer a prompt with a photo: the common part of the protocols of Ollama and OpenAI.

The model writes captions and cannot follow instructions, so prompts are ignored. A second model
name answers with keywords.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from captioner.caption import Caption
from captioner.shared.paths import is_web_address
from captioner_serving.batch.wording import sentence
from captioner_serving.decoding.photo import Readable
from captioner_serving.server.api import services_of, while_connected
from captioner_serving.server.bodies import decode_photo, parse_body, parse_object, too_large
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.errors import NO_URLS, RefusedError, bad_fields
from captioner_serving.server.request import client_of
from captioner_serving.server.service import CaptionService
from captioner_serving.server.urls import WebPhoto

Fields = TypeVar("Fields", bound=BaseModel)

KEYWORDS = "captioner-keywords"
"""The model name that answers with the keywords of the first model."""

_ANY_MODEL = (None, "", "null")  # TagGUI sends "null"


def _decode(image: object) -> object:
    if isinstance(image, dict) and "url" in image:  # OpenAI's image_url
        image = image["url"]
    if isinstance(image, str) and is_web_address(image):
        return image
    return decode_photo(image)


Text = Annotated[str, Field(max_length=20_000)]
"""A text of a prompt."""

Photo = Annotated[bytes | str, BeforeValidator(_decode)]
"""A photo, decoded from base64, or its URL."""

Photos = Annotated[
    tuple[Photo, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
"""The photos of a message."""


Images = tuple[bytes | str, ...]
"""Photos of a message, each as bytes or a URL."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to a prompt.

    model: the name of the model.
    text: a sentence, keywords separated by commas, or a JSON object with either.
    seconds: from the end of the upload to the caption.
    """

    model: str
    text: str
    seconds: float

    @property
    def tokens(self) -> int:
        """The number of words."""
        return len(self.text.split())


async def read_fields(request: Request, fields: type[Fields]) -> Fields:
    """Read a JSON body with any Content-Type; null members of objects count as absent.

    Raises RefusedError: also if the queue is full, before the body is read.
    """
    next(iter(services_of(request).values())).check_capacity(client_of(request.scope))

    def parse(body: bytearray) -> Fields:
        values = parse_object(body)
        body.clear()
        return fields.model_validate(_without_nulls(values))

    try:
        return await parse_body(request, parse)
    except ValidationError as error:
        raise RefusedError("bad-request", bad_fields(error.errors()).detail) from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def current_turn(messages: Sequence[tuple[str, Images]]) -> Images:
    """Return the photos of the user's last turn, or else of the last message with photos.

    messages: the role of each message, such as "user" or "assistant", and its photos.
    """
    roles = ["", *(role for role, _ in messages)]
    last = max(at for at, role in enumerate(roles) if role in ("", "assistant"))
    turn = [image for role, images in messages[last:] if role == "user" for image in images]
    earlier = (images for _, images in reversed(messages[:last]) if images)
    return tuple(turn) or next(earlier, ())


def model_names(request: Request) -> list[str]:
    """Return the names of the models, with `KEYWORDS` if the first one has trust."""
    services = services_of(request)
    has_trust = next(iter(services.values())).captioner.trust is not None
    return [*services, *([KEYWORDS] if has_trust else [])]


def named_service(request: Request, name: str | None) -> tuple[str, CaptionService]:
    """Return the name and the service of a model, by NAME or NAME:latest.

    Raises ConfigError: keywords are requested, and the first model has no trust.
    """
    services = services_of(request)
    first = next(iter(services.values()))
    if name in _ANY_MODEL:
        return first.captioner.name, first
    for candidate in (name, name.removesuffix(":latest")):
        if candidate in services:
            return candidate, services[candidate]
        if candidate == KEYWORDS:
            first.captioner.check_trust(0, setting=KEYWORDS)
            return candidate, first
    names = ", ".join(model_names(request))
    raise RefusedError("no-such-model", f"model {name[:40]!r} not found: use {names}")


async def answer(
    request: Request, model: str | None, images: Images, form: dict[str, Any] | str | None
) -> Reply:
    """Caption the photo of a prompt.

    `form` is "json" for a JSON object, or its JSON schema.

    Raises CaptionerError: there is no such model, or not exactly one photo, or the photo failed.
    """
    name, service = named_service(request, model)
    lists = _check_schema(form) if isinstance(form, dict) else {}
    if any(lists.values()):
        service.captioner.check_trust(0, setting="a list of keywords")
    photo, config = _photo(service.config, images), service.captioner.generation.for_request()
    start = time.monotonic()
    work = service.caption_one(photo, config, client=client_of(request.scope))
    caption = await while_connected(request, work)
    keywords, is_keywords = caption.keywords(), name == KEYWORDS
    text = ", ".join(keywords) if is_keywords else sentence(caption.text)
    if lists:
        text = json.dumps({key: keywords if is_list else text for key, is_list in lists.items()})
    elif form == "json":
        labels = {"labels": _labels(caption, keywords)}
        text = json.dumps(labels if is_keywords else {"caption": text})
    return Reply(model=name, text=text, seconds=time.monotonic() - start)


def _check_schema(schema: dict[str, Any]) -> dict[str, bool]:
    """Return the properties of a JSON schema, and whether each is a list of keywords.

    Raises RefusedError: it has other properties than one text and one list of texts.
    """
    properties = schema.get("properties")
    lists: dict[str, bool] = {}
    for name, form in properties.items() if isinstance(properties, dict) else ():
        form = form if isinstance(form, dict) else {}
        items = form.get("items")
        is_list = form.get("type") == "array"
        is_text = form.get("type") == "string" or (
            is_list and isinstance(items, dict) and items.get("type") == "string"
        )
        if not is_text or "enum" in form or is_list in lists.values():
            lists = {}
            break
        lists[name] = is_list
    if not lists:
        raise RefusedError(
            "bad-request",
            "the JSON schema cannot be filled: use an object with one text, one list of texts "
            "(keywords), or both",
        )
    return lists


def _photo(config: ServerConfig, images: Images) -> bytes | Readable:
    if len(images) != 1:
        count = "no image" if not images else f"{len(images)} images"
        raise RefusedError("bad-request", f"the prompt has {count}; send exactly one")
    (photo,) = images
    if isinstance(photo, str):
        if not config.allow_urls:
            raise RefusedError("forbidden", NO_URLS)
        return WebPhoto(photo, config.max_upload)
    if len(photo) > config.max_upload:
        raise too_large(config.max_upload)
    return photo


def _labels(caption: Caption, keywords: Sequence[str]) -> list[dict[str, Any]]:
    """Return the keywords in the form that PhotoPrism expects."""
    trusts = {word.text.lower(): word.trust for word in caption.words}
    return [{"name": name, "confidence": round(trusts[name] or 0, 4)} for name in keywords]
