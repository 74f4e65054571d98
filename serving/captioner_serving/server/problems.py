"""From our exceptions to the statuses and bodies of HTTP: application/problem+json (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from captioner.errors import (
    CaptionerError,
    ConfigError,
    ImageError,
    ImageFormatError,
)
from captioner_serving.server.batcher import BusyError, ClosedError

__all__ = [
    "PROBLEM_TYPE",
    "ClientGoneError",
    "CrossSiteError",
    "ForbiddenError",
    "InternalError",
    "MediaTypeError",
    "MemoryShortError",
    "MethodError",
    "NotReadyError",
    "PhotoFailedError",
    "RequestError",
    "RouteError",
    "SlowUploadError",
    "ThrottledError",
    "UnauthorizedError",
    "UploadTooLargeError",
    "bad_call",
    "bad_fields",
    "http_problem",
    "problem",
    "status_of",
]


PROBLEM_TYPE = "application/problem+json"
"""The media type of every error that the server answers."""


class RequestError(CaptionerError):
    """The request itself is malformed."""

    type = "bad-request"
    title = "The request cannot be understood"
    status = 400


class UploadTooLargeError(CaptionerError):
    """The request has more bytes or more images than the server takes."""

    type = "upload-too-large"
    title = "The upload is too large"
    status = 413


class MediaTypeError(CaptionerError):
    """The request's body is in a format that is not read."""

    type = "media-type"
    title = "The request is in another format"
    status = 415


class UnauthorizedError(CaptionerError):
    """The request has no credentials, or wrong ones."""

    type = "unauthorized"
    title = "A user and a password are needed"
    status = 401


class ThrottledError(CaptionerError):
    """Too many wrong passwords came from one address."""

    type = "too-many-attempts"
    title = "Too many wrong passwords"
    status = 429
    retry_after = 60  # the minute in which access.py counts them


class ForbiddenError(CaptionerError):
    """The call names what is not its client's."""

    type = "forbidden"
    title = "The request names what is not its own"
    status = 403


class CrossSiteError(CaptionerError):
    """A page of another site made the browser send the request."""

    type = "cross-site"
    title = "The request comes from another site"
    status = 403


class RouteError(CaptionerError):
    """There is no such route."""

    type = "no-such-route"
    title = "There is nothing at this path"
    status = 404


class MethodError(CaptionerError):
    """The route answers to other methods."""

    type = "wrong-method"
    title = "The route has another method"
    status = 405


class SlowUploadError(CaptionerError):
    """The request's body did not come in time."""

    type = "upload-too-slow"
    title = "The upload took too long"
    status = 408


class ClientGoneError(CaptionerError):
    """The client went away before it was answered; nobody reads this."""

    type = "client-gone"
    title = "The client has gone away"
    status = 499  # nginx's own


class PhotoFailedError(ImageError):
    """Something failed at this photo that should not have."""

    type = "internal-error"
    title = "The server failed on this image"
    status = 500


class MemoryShortError(ImageError):
    """There was no memory for this photo, or for the request."""

    type = "out-of-memory"
    title = "The server is short of memory"
    status = 503

    def __init__(
        self, detail: str = "there is no memory for this now: try again in a moment"
    ) -> None:
        super().__init__(detail)


class InternalError(CaptionerError):
    """Something failed that should not have."""

    type = "internal-error"
    title = "The server failed"

    def __init__(self) -> None:
        super().__init__("the server failed on this request, and its log says how: try again")


class NotReadyError(CaptionerError):
    """The model does not answer."""

    type = "not-ready"
    title = "The model does not answer"
    status = 503


# Of errors that are not the server's own.
_STATUS: dict[type[CaptionerError], int] = {
    ImageFormatError: 415,
    ImageError: 422,
    ConfigError: 422,
    BusyError: 503,
    ClosedError: 503,
    CaptionerError: 500,
}


def bad_fields(errors: Iterable[Mapping[str, Any]]) -> ConfigError:
    """Name the fields that pydantic refuses, with their values."""
    reasons = []
    for item in errors:
        name, value, text = item["loc"][-1], str(item["input"])[:40], str(item["msg"])
        reasons.append(f"{name} is {value!r}: {text.replace('Input should', 'it should')}")
    return ConfigError("; ".join(reasons))


def bad_call(errors: Sequence[Mapping[str, Any]]) -> RequestError:
    """Name the first part of a call of the page that pydantic refuses."""
    place = ".".join(str(part)[:40] for part in errors[0]["loc"])
    return RequestError(f"the call cannot be read: {place or 'the body'}: {errors[0]['msg']}")


def http_problem(error: HTTPException) -> JSONResponse:
    """Answer in our form where a library has refused: there is no such file, or no such method."""
    if error.status_code in (403, 404):  # Gradio has paths that it does not open
        answer = problem(RouteError("there is no such file here: the page is at /"))
    elif error.status_code == 503:
        answer = problem(BusyError(5))
    elif error.status_code >= 500:
        answer = problem(InternalError())
    else:
        kind = MethodError if error.status_code == 405 else RequestError
        answer = problem(kind(str(error.detail)))
    answer.headers.update(error.headers or {})
    return answer


def status_of(error: CaptionerError) -> int:
    """Find the HTTP status of an error: its own, or that of its class or the nearest one above."""
    own: int | None = getattr(error, "status", None)
    return own or next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def problem(error: CaptionerError, **members: Any) -> JSONResponse:
    """Answer with an error: type, title, status and detail, and what else belongs to it."""
    status = status_of(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Basic realm="Captioner", charset="UTF-8"'
    if status in (429, 503):
        headers["Retry-After"] = str(getattr(error, "retry_after", 5))
    return JSONResponse(
        {**error.record(), "status": status, **members},
        status_code=status,
        headers=headers,
        media_type=PROBLEM_TYPE,
    )
