"""The routes of gradio_client, in place of Gradio's own uploads and queue.

A client uploads a photo, joins the queue with the path of the upload, and reads the result from a
stream of events. Gradio would write uploads to disk, open the files and URLs that calls name, and
keep results that are never read. Here photos and results stay in memory, for a limited time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, ValidationError

from captioner.errors import CaptionerError
from captioner_serving.memory import is_out_of_memory
from captioner_serving.networks import client_of
from captioner_serving.server.api import CaptionFields
from captioner_serving.server.bodies import read_json, read_parts
from captioner_serving.server.errors import BusyError, RefusedError, bad_fields, error_of
from captioner_serving.server.service import CaptionService

FIELDS = ("beam_size", "captions", "attention", "check_attention", "style", "minimum_trust")
"""The values of a call after the image."""

_KEPT = 60.0  # seconds that uploads, and results without a reader, are kept
_SMALLEST = 16_384  # bytes; smaller uploads count as much, which limits their number
_LONGEST_CALL = 16_000  # bytes
_LOGGER = logging.getLogger("captioner.server")


class _Photo(NamedTuple):
    data: bytes
    client: str

    @property
    def size(self) -> int:
        return max(len(self.data), _SMALLEST)


class _Image(BaseModel):
    path: str = ""
    orig_name: Annotated[str, Field(max_length=255)] | None = None


class _Call(BaseModel):
    session_hash: Annotated[str, Field(max_length=64)]
    data: tuple[_Image, Any, Any, Any, Any, Any, Any]  # the values after the image: see FIELDS


@dataclass(eq=False)
class _Session:
    """The unread calls of a session, and the identifiers of those that are done."""

    # The name of a task is its client.
    calls: dict[str, asyncio.Task[dict[str, Any]]] = field(default_factory=dict)
    done: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    expiry: asyncio.TimerHandle | None = None  # None: it is being read


class GradioCalls:
    """The routes, with limits of uploads and unread results.

    One client may use half of the space for uploads, and have as many unread results as the queue
    has places; all clients together may have four times as many.
    """

    def __init__(self, service: CaptionService) -> None:
        self._service = service
        self._photos: dict[str, _Photo] = {}
        self._sessions: dict[str, _Session] = {}
        self.router = APIRouter(prefix="/gradio_api", include_in_schema=False)
        self.router.add_api_route("/upload", self._upload, methods=["POST"])
        self.router.add_api_route("/queue/join", self._join, methods=["POST"])
        self.router.add_api_route("/queue/data", self._data, methods=["GET"])

    async def _upload(self, request: Request) -> list[str]:
        """Store one file; return its path."""
        limit, capacity = self._service.config.max_upload, self._service.config.max_bodies
        files, _ = await read_parts(request, key="files", max_bytes=limit)
        if not files:
            raise RefusedError("bad-request", "there is no file: send one as 'files'")
        photo = _Photo(files[0].data, client_of(request.scope))
        sizes = Counter[str]()
        for stored in (photo, *self._photos.values()):
            sizes[stored.client] += stored.size
        if sizes.total() > capacity or sizes[photo.client] > max(capacity // 2, photo.size):
            raise BusyError(round(_KEPT), "recent uploads fill the space for uploads")
        path = f"{secrets.token_urlsafe(16)}/{files[0].name or 'image'}"
        self._photos[path] = photo
        asyncio.get_running_loop().call_later(_KEPT, self._photos.pop, path)
        return [path]

    async def _join(self, request: Request) -> dict[str, str]:
        """Begin a call of the endpoint."""
        call = await read_json(request, _Call, max_bytes=_LONGEST_CALL)
        image, *values = call.data
        photo = self._photos.get(image.path)
        if photo is None:
            raise RefusedError(
                "forbidden",
                f"the call names a file that was not uploaded, or more than {_KEPT:.0f} s ago: use "
                "handle_file('photo.jpg')",
            )
        client, event = client_of(request.scope), secrets.token_hex(16)
        session = self._session(call.session_hash, client)
        fields = dict(zip(FIELDS, values, strict=True))
        work = self._output(photo.data, fields, image.orig_name, client)
        session.calls[event] = task = asyncio.create_task(work, name=client)
        task.add_done_callback(lambda _: session.done.put_nowait(event))
        return {"event_id": event}

    def _session(self, name: str, client: str) -> _Session:
        calls = (call for session in self._sessions.values() for call in session.calls.values())
        unread, limit = Counter(call.get_name() for call in calls), self._service.config.queue
        if unread[client] >= limit or unread.total() >= 4 * limit:
            raise BusyError(round(_KEPT), "too many results are unread")
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session()
        elif session.expiry is None:
            return session
        else:
            session.expiry.cancel()
        loop = asyncio.get_running_loop()
        session.expiry = loop.call_later(_KEPT, self._drop, name, session)
        return session

    async def _output(
        self, photo: bytes, values: dict[str, Any], name: str | None, client: str
    ) -> dict[str, Any]:
        try:
            fields = CaptionFields(**{**values, "style": values["style"] or None})
            config, check = fields.settings(self._service.captioner), fields.check_attention
            readable = self._service.readable(photo)
            caption = await self._service.caption_one(
                readable, config, client=client, check_attention=check
            )
            record = caption.record(attention=fields.attention, minimum_trust=fields.minimum_trust)
            return {"data": [{**record, "image": name}]}
        except ValidationError as error:
            return {"error": bad_fields(error.errors()).detail}
        except Exception as error:
            if not (isinstance(error, CaptionerError) or is_out_of_memory(error)):
                _LOGGER.exception("a call of gradio_client failed")
            return {"error": str(error_of(error))}

    async def _data(self, session_hash: str = "") -> Response:
        """Stream the results of a session, until all its calls are answered."""
        session = self._sessions.get(session_hash)
        if session is None or session.expiry is None:
            raise RefusedError(
                "no-such-session",
                "the results of this session were already read or have expired: call again",
            )
        events = self._events(session_hash, session)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, name: str, session: _Session) -> AsyncIterator[str]:
        if session.expiry is None:  # another reader began meanwhile
            return
        session.expiry.cancel()
        session.expiry = None
        try:
            while session.calls:
                try:
                    async with asyncio.timeout(15):
                        event = await session.done.get()
                except TimeoutError:
                    yield _message("heartbeat")
                    continue
                output = session.calls.pop(event).result()
                success = "error" not in output
                yield _message("process_completed", event, output=output, success=success)
            self._drop(name, session)  # a later call begins another session
            yield _message("close_stream")
        finally:
            self._drop(name, session)

    def _drop(self, name: str, session: _Session) -> None:
        if self._sessions.get(name) is session:
            del self._sessions[name]
        for call in session.calls.values():
            call.cancel()


def _message(kind: str, event: str | None = None, **members: Any) -> str:
    return f"data: {json.dumps({'msg': kind, 'event_id': event, **members})}\n\n"
