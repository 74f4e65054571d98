"""Answer a prompt with a photo: the common part of the protocols of Ollama and OpenAI.

The model writes captions and cannot follow instructions, so prompts are ignored. A second model
name answers with keywords.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from captioner.caption import Caption
from captioner.shared.paths import is_web_address
from captioner_serving.batch.wording import sentence
from captioner_serving.networks import client_of
from captioner_serving.server.api import first_service, named_service, services_of, while_connected
from captioner_serving.server.bodies import decode_photo, read_json
from captioner_serving.server.errors import RefusedError
from captioner_serving.server.service import CaptionService

Fields = TypeVar("Fields", bound=BaseModel)

KEYWORDS = "captioner-keywords"
"""The model name that answers with the keywords of the first model."""


def _decode(image: object) -> object:
    if isinstance(image, dict) and "url" in image:  # OpenAI's image_url
        image = image["url"]
    return image if isinstance(image, str) and is_web_address(image) else decode_photo(image)


Text = Annotated[str, Field(max_length=20_000)]
"""A text of a prompt."""

Photo = Annotated[bytes | str, BeforeValidator(_decode)]
"""A photo, decoded from base64, or its URL."""


class Reply(NamedTuple):
    """The answer to a prompt: a sentence, keywords, or a JSON object with either."""

    model: str
    text: str
    seconds: float  # from the end of the upload to the caption

    @property
    def tokens(self) -> int:
        """The number of words."""
        return len(self.text.split())


async def read_fields(request: Request, fields: type[Fields]) -> Fields:
    """Read a JSON body, after a check that the queue has room for an image of the client."""
    first_service(request).check_capacity(client_of(request.scope))
    return await read_json(request, fields)


def current_turn(messages: Sequence[tuple[str, Sequence[bytes | str]]]) -> Sequence[bytes | str]:
    """Return the photos of the user's last turn, or else of the last message with photos.

    Messages have a role, such as "user" or "assistant", and photos.
    """
    roles = ["", *(role for role, _ in messages)]
    last = max(at for at, role in enumerate(roles) if role in ("", "assistant"))
    turn = [image for role, images in messages[last:] if role == "user" for image in images]
    earlier = (images for _, images in reversed(messages[:last]) if images)
    return turn or next(earlier, ())


def model_names(request: Request) -> list[str]:
    """Return the names of the models, with `KEYWORDS` if the first one has trust."""
    has_trust = first_service(request).captioner.trust is not None
    return [*services_of(request), *([KEYWORDS] if has_trust else [])]


def model_of(request: Request, name: str | None) -> tuple[str, CaptionService]:
    """Return the name and the service of a model, by NAME or NAME:latest."""
    name = None if name in ("", "null") else name  # TagGUI sends "null"
    if name is not None and name not in services_of(request):
        name = name.removesuffix(":latest")
    if name == KEYWORDS:
        service = first_service(request)
        service.captioner.check_trust(0, setting=KEYWORDS)
        return KEYWORDS, service
    service = named_service(request, name)
    return service.captioner.name, service


async def answer(
    request: Request, model: str | None, images: Sequence[bytes | str], form: dict[str, Any] | str
) -> Reply:
    """Caption the photo of a prompt; `form` is "json" for a JSON object, its schema, or ""."""
    name, service = model_of(request, model)
    lists = _lists_of(form) if isinstance(form, dict) else {}
    if any(lists.values()):
        service.captioner.check_trust(0, setting="a list of keywords")
    if len(images) != 1:
        count = f"{len(images) or 'no'} images"
        raise RefusedError("bad-request", f"the prompt has {count}; send exactly one")
    photo, config = service.readable(images[0]), service.captioner.generation.for_request()
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


class _TextSchema(BaseModel):
    type: Literal["string"]
    enum: None = None


class _ListSchema(BaseModel):
    type: Literal["array"]
    items: _TextSchema


class _Schema(BaseModel):
    properties: dict[str, _TextSchema | _ListSchema]


def _lists_of(schema: dict[str, Any]) -> dict[str, bool]:
    """Return the properties of a JSON schema, and whether each is a list of keywords."""
    try:
        properties = _Schema.model_validate(schema).properties
    except ValidationError:
        properties = {}
    lists = {name: isinstance(form, _ListSchema) for name, form in properties.items()}
    if not lists or len(set(lists.values())) < len(lists):
        raise RefusedError(
            "bad-request",
            "the JSON schema cannot be filled: use an object with one text, one list of texts "
            "(keywords), or both",
        )
    return lists


def _labels(caption: Caption, keywords: Sequence[str]) -> list[dict[str, Any]]:
    """Return the keywords in the form that PhotoPrism expects."""
    trusts = {word.text.lower(): word.trust for word in caption.words}
    return [{"name": name, "confidence": round(trusts[name] or 0, 4)} for name in keywords]
