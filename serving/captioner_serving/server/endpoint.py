"""The endpoint for gradio_client: predict(handle_file("photo.jpg"), ..., api_name="/caption").

Photos are uploaded to a folder through Gradio, and kept for ten minutes. A call may only name files
in this folder, because Gradio would also download URLs.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.errors import CaptionerError
from captioner_serving.server.api import CaptionFields
from captioner_serving.server.body import boundary_of, parse_object
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.page import page_head, put_preview
from captioner_serving.server.problems import BusyError, RefusedError, bad_fields
from captioner_serving.server.request import client_key, client_of, request_info
from captioner_serving.server.service import CaptionService
from captioner_serving.server.uploads import Results, Uploads

_NAME = "caption"
_MOST_HEARTBEATS = 16  # open streams of a client
_LONGEST_CALL = 16_000  # bytes; a call contains only numbers and paths


def add_endpoint(service: CaptionService) -> None:
    """Add the function for gradio_client, which takes the API's fields and returns a record."""

    async def record(
        request: gr.Request,
        image: Any,
        beam_size: Any = None,
        captions: Any = 1,
        attention: Any = False,
        check_attention: Any = False,
        style: Any = None,
        minimum_trust: Any = None,
    ) -> dict[str, Any]:
        """Caption one image; return the record as `captioner caption --json` does.

        Raises gr.Error: it cannot be captioned; gradio_client raises an AppError with the reason.
        """
        values = {
            "beam_size": beam_size,
            "captions": captions,
            "attention": attention,
            "check_attention": check_attention,
            "style": style or None,
            "minimum_trust": minimum_trust,
        }
        try:
            client = client_key(request.client.host if request.client else "")
            return await _record(service, image, values, client)
        except CaptionerError as error:
            raise gr.Error(str(error), print_exception=False) from error

    with gr.Group(visible=False):
        inputs = [
            gr.Image(type="filepath", label="image"),
            gr.Number(None, precision=0, label="beam_size"),  # None: the checkpoint's
            gr.Number(1, precision=0, label="captions"),
            gr.Checkbox(False, label="attention"),
            gr.Checkbox(False, label="check_attention"),
            gr.Textbox(None, label="style"),  # None: the checkpoint's
            gr.Number(None, label="minimum_trust"),
        ]
        # preprocess=False: the function, not Gradio, opens the file.
        gr.Button("Caption").click(
            record, inputs, gr.JSON(label="record"), preprocess=False, api_name=_NAME
        )


async def _record(
    service: CaptionService, image: Any, values: dict[str, Any], client: str
) -> dict[str, Any]:
    if not isinstance(image, dict) or "path" not in image:
        raise RefusedError("forbidden", "there is no image: pass handle_file('photo.jpg')")
    data = await run_in_threadpool(_read, str(image["path"]))
    try:
        fields = CaptionFields(**values)
    except ValidationError as error:
        raise bad_fields(error.errors()) from error
    config = fields.settings(service.captioner)
    caption = await service.caption_one(
        data, config, client=client, check_attention=fields.check_attention
    )
    result = caption.record(attention=fields.attention, minimum_trust=fields.minimum_trust)
    return {**result, "image": image.get("orig_name")}


def mount(blocks: gr.Blocks, config: ServerConfig) -> FastAPI:
    """Return an application that serves the page and deletes old uploads."""
    # Without this, Gradio does not check the paths of files that clients name.
    blocks.has_launched = True
    blocks.delete_cache = int(min(30, config.upload_ttl)), int(config.upload_ttl)
    put_preview()
    app = FastAPI(openapi_url=None)
    gr.mount_gradio_app(
        app,
        blocks,
        path="",
        root_path=config.root_path or None,
        max_file_size=config.max_upload,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        theme=gr.themes.Base(
            primary_hue="orange",
            neutral_hue="stone",
            radius_size="lg",
            font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "DejaVu Sans", "sans-serif"],
            font_mono=["ui-monospace", "SFMono-Regular", "DejaVu Sans Mono", "monospace"],
        ),
        head=page_head(),
    )
    return app


class GradioGuard:
    """Middleware for Gradio: allows only small calls of the endpoint, and uploaded files.

    Args:
        app: the application of Gradio.
        uploads: the uploads of gradio_client.
        blocks: the page, with the endpoint.
        config: the limits.
    """

    def __init__(
        self, app: ASGIApp, uploads: Uploads, blocks: gr.Blocks, config: ServerConfig
    ) -> None:
        self.app = app
        self._uploads, self._root_path = uploads, config.root_path
        self._heartbeats = Counter[str]()  # open streams by client
        self._results = Results(blocks, limit=4 * config.queue)
        (endpoint,) = [function for function in blocks.fns.values() if function.api_name == _NAME]
        self._function, self._values = endpoint._id, len(endpoint.inputs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request and pass it on.

        Raises CaptionerError: gradio_client does not make such a call, or a limit is reached.
        """
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        # Without Origin, because Gradio would allow any origin to read the answer.
        headers = [header for header in scope["headers"] if header[0] != b"origin"]
        scope = {**scope, "headers": headers}
        route, client = request_info(scope).route, client_of(scope)
        if route == "/" and Request(scope).query_params.get("view") == "api":
            return await RedirectResponse(f"{self._root_path}/docs")(scope, receive, send)
        if scope["method"] == "POST" and route == "/gradio_api/upload":
            return await self.app(scope, self._counted(receive, scope, client), send)
        if scope["method"] == "POST":
            call, receive = await self._checked(Request(scope, receive))
            session = call.get("session_hash")
            if request_info(scope).path.rstrip("/").endswith("/queue/join"):
                if not isinstance(session, str):
                    raise RefusedError("bad-request", "session_hash is missing: use gradio_client")
                self._results.admit(session, client)
        elif route == "/gradio_api/heartbeat":
            if self._heartbeats[client] >= _MOST_HEARTBEATS:
                raise BusyError(5, "too many streams are open")
            self._heartbeats[client] += 1
            try:
                return await self.app(scope, receive, send)
            finally:
                self._heartbeats -= Counter([client])
        elif route == "/gradio_api/queue":
            with self._results.reading(Request(scope).query_params.get("session_hash", "")):
                return await self.app(scope, receive, send)
        return await self.app(scope, receive, send)

    async def watch(self) -> None:
        """Delete old uploads and drop unread results, until cancelled."""
        while True:
            await asyncio.sleep(self._uploads.interval)
            self._results.drop_stale()
            await run_in_threadpool(self._uploads.sweep)

    def _counted(self, receive: Receive, scope: Scope, client: str) -> Receive:
        length = Headers(scope=scope).get("content-length", "")
        mark = b"--" + boundary_of(Headers(scope=scope).get("content-type", "")).encode("latin-1")
        upload = self._uploads.begin(client, int(length) if length.isdecimal() else 0)
        size = marks = 0
        rest = b""  # the end of the last chunk, where a boundary may begin

        async def counted() -> Message:
            nonlocal size, marks, rest
            message = await receive()
            chunk = message.get("body", b"")
            size += len(chunk)
            marks += (rest + chunk).count(mark)
            rest = (rest + chunk)[1 - len(mark) :]
            if marks > 2:  # before and after one file
                raise RefusedError("upload-too-large", "upload one file per request")
            self._uploads.grow(upload, size)
            return message

        return counted

    async def _checked(self, request: Request) -> tuple[dict[str, Any], Receive]:
        """Read and check a call; return it, and a `receive` that replays it."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_CALL:
                raise RefusedError(
                    "upload-too-large", f"the limit of a call is {_LONGEST_CALL:,} bytes"
                )
        call = parse_object(bytes(body))
        self._check(call)
        checked = json.dumps(call).encode()
        first: Message = {"type": "http.request", "body": checked, "more_body": False}
        pending = [first]

        async def again() -> Message:
            return pending.pop() if pending else await request.receive()

        return call, again

    def _check(self, call: dict[str, Any]) -> None:
        data = call.get("data", [])
        if not isinstance(data, list) or (data and not isinstance(data[0], dict | None)):
            raise RefusedError("bad-request", "the first value must be a file: use handle_file")
        if not all(map(self._uploads.owns, _paths(call))):
            raise RefusedError(
                "forbidden", "the call names a file that was not uploaded: use handle_file"
            )
        # Gradio would log a traceback for other calls.
        if "data" in call and (call.get("fn_index"), len(data)) != (self._function, self._values):
            detail = f"only /{_NAME} can be called, with {self._values} values: use gradio_client"
            raise RefusedError("bad-request", detail)


def _paths(value: object) -> Iterator[object]:
    """Yield the paths of all files in a value, at any depth."""
    if isinstance(value, dict):
        yield from [value["path"]] if "path" in value else []
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _paths(part)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()  # an upload: see GradioGuard
    except OSError as error:
        raise RefusedError(
            "forbidden", "the photo was deleted, because uploads are temporary: upload it again"
        ) from error
