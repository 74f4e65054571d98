"""Convert exceptions to HTTP statuses and problem documents (RFC 9457), in a request's protocol."""

from __future__ import annotations

import re
import reprlib
import secrets
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Scope

from captioner.errors import CaptionerError, ConfigError, ImageError, ImageFormatError
from captioner_serving.memory import is_out_of_memory

PROBLEM_TYPE = "application/problem+json"
"""The media type of errors."""

PROBLEMS = {
    "bad-request": (400, "The request is invalid"),
    "unauthorized": (401, "Authentication required"),
    "cross-site": (403, "Cross-site request refused"),
    "forbidden": (403, "Forbidden"),
    "no-such-session": (404, "The session has ended"),
    "no-such-route": (404, "Not found"),
    "no-such-model": (404, "There is no such model"),
    "wrong-method": (405, "Method not allowed"),
    "upload-too-slow": (408, "The upload took too long"),
    "upload-too-large": (413, "The upload is too large"),
    "media-type": (415, "Unsupported media type"),
    "client-gone": (499, "The client disconnected"),  # nginx's status, only for the log
    "internal-error": (500, "The server failed"),
    "busy": (503, "The server is at capacity"),
    "closing": (503, "The server is shutting down"),
    "not-ready": (503, "The model does not answer"),
}
"""The server's problems by `type`: status and title; see docs/api.md."""


_OLLAMA = re.compile(
    r"/api/(generate|chat|show|tags|ps|version|pull|push|create|copy|delete|embed|embeddings|blobs/.+)"
)


@dataclass(eq=False)
class RequestInfo:
    """Information about a request, which `middleware.RequestContext` adds to the scope."""

    path: str  # without the prefix of a proxy
    route: str | None = None  # its pattern
    user: str | None = None  # the name of the token
    # A unique text for the answer's headers, the problem document and the log.
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def is_api(self) -> bool:
        """Whether the route belongs to the API."""
        return self.path.startswith(("/api/", "/v1/"))

    @property
    def protocol(self) -> Literal["ollama", "openai"] | None:
        """The protocol that defines the form of errors; None: RFC 9457."""
        if self.path.startswith("/v1/"):
            return "openai"
        return "ollama" if _OLLAMA.fullmatch(self.path) else None

    @property
    def shown_path(self) -> str:
        """The path without text from clients."""
        if self.route is None:
            first, slash, _ = self.path[1:].partition("/")
            return f"/{first[:40]}{'/...' if slash else ''}"
        return self.route


current_request: ContextVar[RequestInfo | None] = ContextVar("current_request", default=None)
"""The current request, for the form of its errors."""


def request_info(scope: Scope) -> RequestInfo:
    """Return the information that `middleware.RequestContext` added to the scope."""
    info: RequestInfo = scope["captioner"]
    return info


class RefusedError(CaptionerError):
    """A refused request; `kind` is a key of PROBLEMS, `headers` are those of the answer."""

    def __init__(self, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind, self.headers = kind, headers or {}

    def record(self) -> dict[str, str]:
        """Return the fields `type`, `title` and `detail`."""
        return {"type": self.kind, "title": PROBLEMS[self.kind][1], "detail": self.detail}


class BusyError(RefusedError):
    """A limit of the server is reached; `retry_after` is the expected wait in seconds."""

    def __init__(self, retry_after: int, reason: str = "the queue is full") -> None:
        detail = f"{reason}: try again in {retry_after} s"
        super().__init__("busy", detail, {"Retry-After": str(retry_after)})


class ClosedError(RefusedError):
    """The server is shutting down and accepts no new requests."""

    def __init__(self) -> None:
        super().__init__("closing", "the server is shutting down: try again soon")


class PhotoFailedError(ImageError, type="internal-error", title="The server failed on this image"):
    """An unexpected error occurred with this photo."""


class LowTrustError(ImageError, type="low-trust", title="The caption is probably wrong"):
    """The caption has less trust than the server's minimum."""


class MemoryShortError(ImageError, type="out-of-memory", title="The server is short of memory"):
    """There was not enough memory for the photo or request."""

    def __init__(self) -> None:
        super().__init__("there is not enough memory now: try again in a moment")


# The status of errors that are not a RefusedError; the first match counts.
_STATUS: tuple[tuple[type[CaptionerError], int], ...] = (
    (PhotoFailedError, 500),
    (MemoryShortError, 503),
    (ImageFormatError, 415),
    (ImageError, 422),
    (ConfigError, 422),
    (CaptionerError, 500),
)


def error_of(error: Exception) -> CaptionerError:
    """Return the error that a client gets for an exception."""
    if isinstance(error, CaptionerError):
        return error
    if isinstance(error, HTTPException) and error.status_code < 500:
        headers = error.headers or {}
        if error.status_code == 404:
            detail = (
                "the API's documentation is at /docs; of OpenAI's routes there is "
                "/v1/chat/completions, of Ollama's /api/generate and /api/chat"
            )
            return RefusedError("no-such-route", detail)
        if error.status_code == 405:
            detail = f"send a {headers.get('Allow', 'GET')} request; the documentation is at /docs"
            return RefusedError("wrong-method", detail, headers)
        return RefusedError("bad-request", str(error.detail), headers)
    if is_out_of_memory(error):
        return MemoryShortError()
    detail = "the server failed on this request; its log has the reason: try again"
    return RefusedError("internal-error", detail)


def too_large(max_bytes: int) -> RefusedError:
    """Return the error for a request with more bytes than `max_bytes`."""
    return RefusedError(
        "upload-too-large",
        f"the limit of a request is {max_bytes / 1e6:g} MB: send a smaller photo, or fewer photos",
    )


def bad_fields(errors: Iterable[Mapping[str, Any]]) -> ConfigError:
    """Return an error that names the fields that pydantic refuses, with their values."""
    reasons = []
    for item in islice(errors, 5):
        name = ".".join(str(part)[:40] for part in item["loc"][-4:])
        given = "" if item["type"] == "missing" else f" is {reprlib.repr(item['input'])}"
        text = str(item["msg"]).partition(" or instance of")[0]
        for python, json in (("Input", "it"), ("dictionary", "object"), ("tuple", "list")):
            text = text.replace(python, json)
        reasons.append(f"{name}{given}: {text}")
    return ConfigError("; ".join(reasons))


def status_of(kind: type[CaptionerError]) -> int:
    """Return the status of an error that is not a RefusedError."""
    return next(status for base, status in _STATUS if issubclass(kind, base))


def problem(exception: Exception, **members: Any) -> JSONResponse:
    """Return the answer for an exception, in the protocol of the client."""
    error, request, headers = error_of(exception), current_request.get(), dict[str, str]()
    if isinstance(error, RefusedError):
        status, headers = PROBLEMS[error.kind][0], dict(error.headers)
    else:
        status = status_of(type(error))
    if status == 503:
        headers.setdefault("Retry-After", "5")
    record, media_type = error.record(), "application/json"
    body: dict[str, Any]
    if request is not None and request.protocol == "ollama":
        body = {"error": record["detail"]}
    elif request is not None and request.protocol == "openai":
        codes = {"unauthorized": "invalid_api_key", "no-such-model": "model_not_found"}
        body = {"error": {
            "message": record["detail"], "param": None,
            "type": "invalid_request_error" if status < 500 else "server_error",
            "code": codes.get(record["type"], record["type"].replace("-", "_")),
        }}  # fmt: skip
    else:
        body, media_type = {**record, "status": status, **members}, PROBLEM_TYPE
        body |= {} if request is None else {"request": request.id}
    return JSONResponse(body, status_code=status, headers=headers, media_type=media_type)
