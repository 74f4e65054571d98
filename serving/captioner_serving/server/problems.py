"""From our exceptions to the statuses and bodies of HTTP: application/problem+json (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from captioner.errors import CaptionerError, ConfigError, ImageError, ImageFormatError
from captioner_serving.server.request import current_request

__all__ = [
    "PROBLEMS",
    "PROBLEM_TYPE",
    "BusyError",
    "ClosedError",
    "MemoryShortError",
    "PhotoFailedError",
    "RefusedError",
    "bad_call",
    "bad_fields",
    "http_problem",
    "internal_error",
    "problem",
]

PROBLEM_TYPE = "application/problem+json"
"""The media type of every error that the server answers."""

PROBLEMS = {
    "bad-request": (400, "The request cannot be understood"),
    "unauthorized": (401, "A user and a password are needed"),
    "cross-site": (403, "The request comes from another site"),
    "forbidden": (403, "Forbidden"),
    "no-such-session": (404, "The session has ended"),
    "no-such-route": (404, "There is nothing at this path"),
    "no-such-model": (404, "There is no such model"),
    "wrong-method": (405, "The route has another method"),
    "upload-too-slow": (408, "The upload took too long"),
    "upload-too-large": (413, "The upload is too large"),
    "media-type": (415, "The request is in another format"),
    "client-gone": (499, "The client has gone away"),  # nginx's own status; nobody reads this
    "internal-error": (500, "The server failed"),
    "busy": (503, "The server is at capacity"),
    "closing": (503, "The server is shutting down"),
    "not-ready": (503, "The model does not answer"),
}
"""The problems that are the server's own, by `type`: status and title; see docs/api.md."""


class RefusedError(CaptionerError):
    """A request that is not answered as it wishes.

    Args:
        kind: one of PROBLEMS.
        detail: what is wrong with this one, and what helps.
        headers: that the answer has.
    """

    def __init__(self, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind, self.headers = kind, headers or {}

    def record(self) -> dict[str, str]:
        """Type, title and detail."""
        return {"type": self.kind, "title": PROBLEMS[self.kind][1], "detail": self.detail}


class BusyError(RefusedError):
    """There is no room for the request now; how many seconds until there may be."""

    def __init__(self, retry_after: int, reason: str = "the queue is full") -> None:
        detail = f"{reason}: try again in {retry_after} s"
        super().__init__("busy", detail, {"Retry-After": str(retry_after)})


class ClosedError(RefusedError):
    """The server is going away: what it accepted it finishes, and it accepts no more."""

    def __init__(self) -> None:
        detail = "the server is shutting down and takes no more images: try again soon"
        super().__init__("closing", detail)


class PhotoFailedError(ImageError):
    """Something failed at this photo that should not have."""

    type = "internal-error"
    title = "The server failed on this image"


class MemoryShortError(ImageError):
    """There was no memory for this photo, or for the request."""

    type = "out-of-memory"
    title = "The server is short of memory"

    def __init__(
        self, detail: str = "there is no memory for this now: try again in a moment"
    ) -> None:
        super().__init__(detail)


# Of errors that are not the server's own; the first that fits.
_STATUS: tuple[tuple[type[CaptionerError], int], ...] = (
    (PhotoFailedError, 500),
    (MemoryShortError, 503),
    (ImageFormatError, 415),
    (ImageError, 422),
    (ConfigError, 422),
    (CaptionerError, 500),
)


def internal_error() -> RefusedError:
    """Something failed that should not have."""
    detail = "the server failed on this request, and its log says how: try again"
    return RefusedError("internal-error", detail)


def bad_fields(errors: Iterable[Mapping[str, Any]]) -> ConfigError:
    """Name the fields that pydantic refuses, with their values."""
    reasons = []
    for item in errors:
        name, value, text = str(item["loc"][-1])[:40], str(item["input"])[:40], str(item["msg"])
        reasons.append(f"{name} is {value!r}: {text.replace('Input should', 'it should')}")
    return ConfigError("; ".join(reasons))


def bad_call(errors: Sequence[Mapping[str, Any]]) -> RefusedError:
    """Name the first part of a call of the page that pydantic refuses."""
    place = ".".join(str(part)[:40] for part in errors[0]["loc"])
    detail = f"the call cannot be read: {place or 'the body'}: {errors[0]['msg']}"
    return RefusedError("bad-request", detail)


def http_problem(error: HTTPException) -> JSONResponse:
    """Answer in our form where a library has refused: there is no such file, or no such method."""
    if error.status_code in (403, 404):  # Gradio has paths that it does not open
        refusal = RefusedError("no-such-route", "there is no such file here: the page is at /")
    elif error.status_code == 503:
        refusal = BusyError(5)
    elif error.status_code >= 500:
        refusal = internal_error()
    else:
        kind = "wrong-method" if error.status_code == 405 else "bad-request"
        refusal = RefusedError(kind, str(error.detail))
    answer = problem(refusal)
    answer.headers.update(error.headers or {})
    return answer


def status_of(kind: type[CaptionerError]) -> int:
    """Give the status of an error that is not the server's own refusal."""
    return next(status for known, status in _STATUS if issubclass(kind, known))


def problem(error: CaptionerError, **members: Any) -> JSONResponse:
    """Return the answer for an error, in the form of the protocol that the client speaks."""
    own: Mapping[str, str] = {}
    if isinstance(error, RefusedError):
        status, own = PROBLEMS[error.kind][0], error.headers
    else:
        status = status_of(type(error))
    headers = {"Retry-After": "5", **own} if status == 503 else dict(own)
    record, request = error.record(), current_request.get()
    if request is not None and request.protocol is not None:
        form = _openai_form if request.protocol == "openai" else _ollama_form
        return JSONResponse(form(record, status), status_code=status, headers=headers)
    members |= {} if request is None else {"request": request.id}
    return JSONResponse(
        {**record, "status": status, **members},
        status_code=status,
        headers=headers,
        media_type=PROBLEM_TYPE,
    )


def _ollama_form(record: Mapping[str, str], _: int) -> dict[str, Any]:
    return {"error": record["detail"]}


def _openai_form(record: Mapping[str, str], status: int) -> dict[str, Any]:
    codes = {"unauthorized": "invalid_api_key", "no-such-model": "model_not_found"}
    code = codes.get(record["type"], record["type"].replace("-", "_"))
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": record["detail"], "type": kind, "param": None, "code": code}}
