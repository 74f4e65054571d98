"""A multipart request, read into memory within limits: its images, and the fields beside them."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.requests import Request

from captioner_serving.server.problems import (
    MediaTypeError,
    RequestError,
    UploadTooLargeError,
    bad_fields,
)

__all__ = ["SLACK", "Upload", "read_form", "too_large"]

Fields = TypeVar("Fields", bound=BaseModel)

_MOST_FIELDS = 16
_LONGEST_FIELD = 1 << 20  # bytes: a record with its attention has some 20 kB, with heads 200

SLACK = _LONGEST_FIELD + 16_384
"""Bytes that a request may have around its images: a record, boundaries and headers."""

# What RFC 2046 lets a boundary be, and a type that is read in no time.
_BOUNDARY = re.compile(r"[ \w'()+,./:=?-]{1,70}", re.ASCII)
_LONGEST_TYPE = 500

# Starlette writes files over 1 MB to disk; ours are bounded by the limit on the whole request.
MultiPartParser.spool_max_size = 1 << 62


class Upload(NamedTuple):
    """One file of a request: the name as the client gave it, never opened, and the bytes."""

    name: str | None
    data: bytes


async def read_form(
    request: Request, fields: type[Fields], *, max_bytes: int, max_files: int = 1
) -> tuple[list[Upload], Fields]:
    """Read the images of a multipart request, in order, and its other fields.

    Raises:
        MediaTypeError: the request is not multipart/form-data.
        UploadTooLargeError: it has more files, or more bytes in them, than allowed.
        RequestError: a broken body, a part that does not belong, or no image.
        ConfigError: a field is out of range.

    """
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise MediaTypeError(
            "send multipart/form-data with a part 'image' for each image, "
            f"not {kind.split(';')[0] or 'a body without a type'}"
        )
    plain = f'multipart/form-data; boundary="{_boundary(kind)}"'
    headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
    headers.append((b"content-type", plain.encode("latin-1")))
    request = Request({**request.scope, "headers": headers}, request.receive)
    try:
        async with request.form(
            max_files=max_files, max_fields=_MOST_FIELDS, max_part_size=_LONGEST_FIELD
        ) as form:
            files, values = await _sort(form.multi_items(), tuple(fields.model_fields))
    except (HTTPException, LookupError, ValueError) as error:
        reason = str(getattr(error, "detail", "it does not follow its own boundary"))
        if "Too many files" in reason:
            raise UploadTooLargeError(
                f"send at most {max_files} images in a request, and other fields as text"
            ) from error
        if "Part exceeded" in reason:
            raise UploadTooLargeError(
                f"a field beside the images may have {_LONGEST_FIELD:,} bytes"
            ) from error
        raise RequestError(f"the multipart body is broken: {reason}") from error
    if sum(len(file.data) for file in files) > max_bytes:
        raise too_large(max_bytes)
    if not files:
        raise RequestError("there is no image: send one as curl -F image=@photo.jpg does")
    try:
        return files, fields.model_validate(values)
    except ValidationError as error:
        raise bad_fields(error.errors()) from None


def too_large(max_bytes: int) -> UploadTooLargeError:
    """Say how much a request may have."""
    return UploadTooLargeError(
        f"a request may have {max_bytes / 1e6:g} MB: send a smaller photo, or fewer at a time"
    )


def _boundary(kind: str) -> str:
    """The boundary, and nothing else: a charset could be one that takes hours to decode.

    Raises:
        RequestError: there is none, or none that may be.

    """
    _, options = parse_options_header(kind) if len(kind) <= _LONGEST_TYPE else ("", {})
    boundary = options.get(b"boundary", b"").decode("latin-1")
    if not _BOUNDARY.fullmatch(boundary):
        raise RequestError("the multipart body is broken: its type names no boundary, or a bad one")
    return boundary


async def _sort(
    items: list[tuple[str, UploadFile | str]], names: tuple[str, ...]
) -> tuple[list[Upload], dict[str, str]]:
    files: list[Upload] = []
    values: dict[str, str] = {}
    for key, value in items:
        if isinstance(value, UploadFile) and key == "image":
            files.append(Upload(value.filename or None, await value.read()))
        elif isinstance(value, str) and key in names and key not in values:
            values[key] = value
        elif key == "image":
            raise RequestError("'image' is text here: send a file, as curl -F image=@photo.jpg")
        else:
            known = ", ".join(("image", *names))
            raise RequestError(f"{key[:40]!r} is not known, or given twice: send {known}")
    return files, values
