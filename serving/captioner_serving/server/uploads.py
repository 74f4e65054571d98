"""Reading a multipart request into memory, within limits; nothing of it touches the disk."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import NamedTuple

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from captioner_serving.server.problems import (
    MediaTypeError,
    RequestError,
    UploadTooLargeError,
)

__all__ = ["Form", "Upload", "read_form"]

_MAX_FIELDS = 16
_MAX_FIELD = 10_000  # bytes
_SLACK = 16_384  # bytes for the fields, boundaries and headers around the images

# What RFC 2046 lets a boundary be, and a type that is read in no time.
_BOUNDARY = re.compile(r"[ \w'()+,./:=?-]{1,70}", re.ASCII)
_MAX_TYPE = 500  # characters


class Upload(NamedTuple):
    """One file of a request: the name as the client gave it, never opened, and the bytes."""

    name: str | None
    data: bytes


class Form(NamedTuple):
    """A request's files, in order, and its other fields."""

    files: list[Upload]
    fields: dict[str, str]


class _MemoryParser(MultiPartParser):
    # Starlette writes files over 1 MB to disk; ours are bounded by the limit on the whole request.
    spool_max_size = 1 << 62


async def read_form(
    request: Request, *, name: str, max_bytes: int, max_files: int, fields: tuple[str, ...] = ()
) -> Form:
    """Read the files called `name`, and the fields, of a multipart request.

    Raises:
        MediaTypeError: the request is not multipart/form-data.
        UploadTooLargeError: more bytes or files than allowed; the rest is not read.
        RequestError: a broken body, or a part that does not belong.

    """
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise MediaTypeError(
            f"send multipart/form-data with a part {name!r} for each image, "
            f"not {kind.split(';')[0] or 'a body without a type'}"
        )
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes + _SLACK:
        raise UploadTooLargeError(_too_large(max_bytes))
    parser = _MemoryParser(
        Headers({"content-type": f'multipart/form-data; boundary="{_boundary(kind)}"'}),
        _limited(request, max_bytes + _SLACK),  # type: ignore[arg-type]
        max_files=max_files,
        max_fields=_MAX_FIELDS,
        max_part_size=_MAX_FIELD,
    )
    try:
        parsed = await parser.parse()
    except (MultiPartException, LookupError, ValueError) as error:
        reason = getattr(error, "message", "it does not follow its own boundary")
        if "Too many files" in reason:
            raise UploadTooLargeError(f"send at most {max_files} images in a request") from error
        raise RequestError(f"the multipart body is broken: {reason}") from error
    try:
        return await _sort(parsed.multi_items(), name, fields)
    finally:
        await parsed.close()


def _boundary(kind: str) -> str:
    """The boundary, and nothing else: a charset could be one that takes hours to decode.

    Raises:
        RequestError: there is none, or none that may be.

    """
    _, options = parse_options_header(kind) if len(kind) <= _MAX_TYPE else ("", {})
    boundary = options.get(b"boundary", b"").decode("latin-1")
    if not _BOUNDARY.fullmatch(boundary):
        raise RequestError("the multipart body is broken: its type names no boundary, or a bad one")
    return boundary


async def _sort(
    items: list[tuple[str, UploadFile | str]], name: str, fields: tuple[str, ...]
) -> Form:
    form = Form([], {})
    for key, value in items:
        if isinstance(value, UploadFile) and key == name:
            form.files.append(Upload(value.filename or None, await value.read()))
        elif isinstance(value, str) and key in fields and key not in form.fields:
            form.fields[key] = value
        elif key == name:
            raise RequestError(f"{name!r} is text here: send a file, as curl -F {name}=@photo.jpg")
        else:
            known = ", ".join((name, *fields))
            raise RequestError(f"{key[:40]!r} is not known, or given twice: send {known}")
    return form


async def _limited(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Pass the body on until it is longer than it may be, whatever its headers say."""
    total = 0
    async for chunk in request.stream():
        total += len(chunk)
        if total > limit:
            raise UploadTooLargeError(_too_large(limit - _SLACK))
        yield chunk


def _too_large(max_bytes: int) -> str:
    return f"a request may have {max_bytes / 1e6:g} MB: send a smaller photo, or fewer at a time"
