"""Bodies of requests: limits of size and time, and parsing of forms and JSON with images.

A body is in memory from its first byte until its request is answered, so there is also a limit for
all bodies together.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner_serving.memory import release_memory
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.errors import BusyError, RefusedError, bad_fields, problem, too_large
from captioner_serving.server.metrics import Metrics

Fields = TypeVar("Fields", bound=BaseModel)
Parsed = TypeVar("Parsed")

_MOST_FIELDS = 16
_MOST_VALUES = 10_000  # commas in JSON; base64 has none
_LONGEST_FIELD = 1 << 20  # bytes
_SLACK = 1 << 20  # bytes besides the images: fields, boundaries, texts of a chat
_MUCH = 50_000_000  # bytes of bodies after which an idle server releases memory
_SECONDS = 15.0  # for a body; large ones get more
_SLOWEST = 50_000  # bytes per second that a client must send afterwards

# The head of a data URL, which some clients send without "data:".
_SCHEME = re.compile(
    r"(?:data:)?(?:[\w.+-]{1,40}/[\w.+-]{1,80})?(?:;[\w=-]{1,40}){0,3},", re.ASCII | re.IGNORECASE
)

_BOUNDARY = re.compile(r"[ \w'()+,./:=?-]{1,70}", re.ASCII)  # RFC 2046
_LONGEST_TYPE = 500  # characters; a longer one takes long to parse

# Parsing 20 MB takes 0.1 s and copies of it, so few bodies are parsed at a time, in threads.
_PARSERS = ThreadPoolExecutor(2, "parse")

# Keep files in memory: the request is limited, and Starlette would write them to disk.
MultiPartParser.spool_max_size = 1 << 62


@dataclass(eq=False)
class _Body:
    started: float
    size: int = 0
    complete: bool = False


class BodyLimits:
    """Middleware that limits the size and speed of bodies."""

    def __init__(self, app: ASGIApp, config: ServerConfig, metrics: Metrics) -> None:
        self.app = app
        self._config = config
        self._bodies: set[_Body] = set()
        self._freed = 0  # bytes of bodies since memory was last released
        metrics.bodies.set_function(self._held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if (refusal := self._refusal(Headers(scope=scope))) is not None:
            return await problem(refusal)(scope, receive, send)
        body = _Body(started=asyncio.get_running_loop().time())

        async def bounded() -> Message:
            return await receive() if body.complete else await self._next(body, receive)

        self._bodies.add(body)
        try:
            return await self.app(scope, bounded, send)
        finally:
            self._bodies.discard(body)
            self._freed += body.size
            if self._freed > _MUCH and not self._held():
                self._freed = 0
                asyncio.get_running_loop().run_in_executor(_PARSERS, release_memory)

    def _refusal(self, headers: Headers) -> RefusedError | None:
        length = headers.get("content-length", "")
        if length and "transfer-encoding" in headers:
            # A proxy may have used the other header (request smuggling).
            detail = "Content-Length and Transfer-Encoding are both set: send only one"
            return RefusedError("bad-request", detail, {"Connection": "close"})
        if length.isdecimal() and int(length) > self._config.max_upload + _SLACK:
            return too_large(self._config.max_upload)
        return None

    async def _next(self, body: _Body, receive: Receive) -> Message:
        """Receive the next part of a body, unless it is too slow or too large."""
        try:
            async with asyncio.timeout_at(body.started + _SECONDS + body.size / _SLOWEST):
                message = await receive()
        except TimeoutError as error:
            raise RefusedError(
                "upload-too-slow",
                f"after {_SECONDS:g} s an upload needs at least {_SLOWEST // 1000} kB/s: "
                "use a faster connection, or send a smaller photo",
            ) from error
        if message["type"] == "http.request":
            body.size += len(message.get("body", b""))
            body.complete = not message.get("more_body", False)
            if body.size > self._config.max_upload + _SLACK:
                raise too_large(self._config.max_upload)
            if self._held() > self._config.max_bodies:
                self._bodies.discard(body)
                raise BusyError(5, "too many uploads are in progress")
        return message

    def _held(self) -> int:
        return sum(body.size for body in self._bodies)


class Upload(NamedTuple):
    """A file of a request, with the name that the client gave it."""

    name: str | None
    data: bytes


async def read_parts(
    request: Request, *, key: str, names: Sequence[str] = (), max_bytes: int, max_files: int = 1
) -> tuple[list[Upload], dict[str, str]]:
    """Read the files named `key` of a multipart request, in order, and the texts of other names."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        given = kind.split(";")[0] or "without a type"
        raise RefusedError("media-type", f"the body is {given}: send multipart/form-data")
    # Only the boundary is used: with a charset chosen by the client, decoding could take hours.
    _, options = parse_options_header(kind) if len(kind) <= _LONGEST_TYPE else ("", {})
    boundary = options.get(b"boundary", b"").decode("latin-1")
    if not _BOUNDARY.fullmatch(boundary):
        raise RefusedError("bad-request", "the type of the multipart body has no valid boundary")
    headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
    headers.append((b"content-type", f'multipart/form-data; boundary="{boundary}"'.encode()))
    request = Request({**request.scope, "headers": headers}, request.receive)
    files, values = list[Upload](), dict[str, str]()
    try:
        async with request.form(
            max_files=max_files, max_fields=_MOST_FIELDS, max_part_size=_LONGEST_FIELD
        ) as form:
            for name, value in form.multi_items():
                if isinstance(value, UploadFile) and name == key:
                    files.append(Upload(value.filename or None, await value.read()))
                    await value.close()  # frees its copy
                elif isinstance(value, str) and name in names and name not in values:
                    values[name] = value
                elif name in (key, *names):
                    what = "a file" if name == key else "a text"
                    detail = f"{name!r} must be given once, as {what}: use curl -F image=@photo.jpg"
                    raise RefusedError("bad-request", detail)
                else:
                    known = ", ".join((key, *names))
                    raise RefusedError("bad-request", f"{name[:40]!r} is not a field: use {known}")
    except (HTTPException, LookupError, ValueError) as error:
        reason = str(getattr(error, "detail", "it does not match its boundary"))
        is_large = "Too many files" in reason or "Part exceeded" in reason
        kind = "upload-too-large" if is_large else "bad-request"
        raise RefusedError(kind, f"the multipart body is invalid: {reason}") from error
    if sum(len(file.data) for file in files) > max_bytes:
        raise too_large(max_bytes)
    return files, values


async def read_json(
    request: Request, fields: type[Fields], *, max_bytes: int | None = None
) -> Fields:
    """Read a JSON body with any Content-Type; null members of objects count as absent."""

    def parse(body: bytearray) -> Fields:
        values = parse_object(body)
        body.clear()  # frees its memory as early as possible
        return fields.model_validate(_without_nulls(values))

    try:
        return await parse_body(request, parse, max_bytes=max_bytes)
    except ValidationError as error:
        raise RefusedError("bad-request", bad_fields(error.errors()).detail) from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


async def parse_body(
    request: Request, parse: Callable[[bytearray], Parsed], *, max_bytes: int | None = None
) -> Parsed:
    """Read a body and parse it in a thread, which keeps the event loop free."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if max_bytes is not None and len(body) > max_bytes:
            raise RefusedError("upload-too-large", f"the limit of this body is {max_bytes:,} bytes")
    return await asyncio.get_running_loop().run_in_executor(_PARSERS, parse, body)


def parse_object(body: bytes | bytearray) -> dict[str, Any]:
    """Parse a JSON object."""
    if body.count(b",") > _MOST_VALUES:  # which would take much memory
        raise RefusedError("bad-request", f"the body has more than {_MOST_VALUES:,} values")
    try:
        values = from_json(body)  # refuses deep nesting and lone surrogates
    except ValueError as error:
        raise RefusedError("bad-request", "the body is not valid JSON") from error
    if not isinstance(values, dict):
        raise RefusedError("bad-request", "the body must be a JSON object")
    return values


def decode_photo(image: object) -> bytes:
    """Decode a photo from base64 or a data URL, with or without line breaks and padding."""
    try:
        if not isinstance(image, str):
            raise ValueError
        scheme = _SCHEME.match(image)
        text = image[scheme.end() if scheme else 0 :]
        with contextlib.suppress(binascii.Error):  # line breaks, or no padding
            return binascii.a2b_base64(text, strict_mode=True)  # copies nothing
        coded = text.encode("ascii").translate(None, b" \t\r\n").rstrip(b"=")
        return binascii.a2b_base64(coded + b"=" * (-len(coded) % 4), strict_mode=True)
    except ValueError as error:
        raise RefusedError("bad-request", "a photo must be base64 or a data URL") from error
