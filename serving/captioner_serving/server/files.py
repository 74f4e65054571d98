"""Gradio's upload and file routes, in our own way: into the private folder, and back to its owner.

They stand before Gradio's own (which write to a folder of all sessions, and fetch links).
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from captioner_serving.server.config import ServerConfig
from captioner_serving.server.cookies import COOKIE
from captioner_serving.server.problems import ForbiddenError
from captioner_serving.server.store import UploadStore
from captioner_serving.server.uploads import read_form

__all__ = ["make_file_router"]

_GONE = "this browser has no such file, or it has been deleted"
# What a browser may show in place; anything else is handed over as bytes.
_TYPES = {
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG": "image/png",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
    b"BM": "image/bmp",
}


def make_file_router(store: UploadStore, config: ServerConfig) -> APIRouter:
    """The routes that Gradio's image field calls."""
    router = APIRouter(prefix="/gradio_api", include_in_schema=False)

    @router.post("/upload")
    async def upload(request: Request) -> Response:
        form = await read_form(request, name="files", max_bytes=config.max_upload, max_files=1)
        owner = request.cookies.get(COOKIE)
        paths = [
            await run_in_threadpool(store.save, file.name, file.data, owner=owner)
            for file in form.files
        ]
        return JSONResponse(paths)

    @router.get("/upload_progress")
    def progress() -> Response:
        # The field asks; photos are small, and its own bar would come too late.
        return StreamingResponse(
            iter(['data: {"msg": "done"}\n\n']), media_type="text/event-stream"
        )

    @router.get("/file={path:path}")
    def show(path: str, request: Request) -> Response:
        if not store.owns(path, request.cookies.get(COOKIE)):
            raise ForbiddenError(_GONE)
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - the very string that the store knows
                head = file.read(16)
        except FileNotFoundError as error:  # at this very moment
            raise ForbiddenError(_GONE) from error
        kind = next((kind for magic, kind in _TYPES.items() if head.startswith(magic)), None)
        kind = kind or ("image/avif" if b"ftypavif" in head else "application/octet-stream")
        return FileResponse(path, media_type=kind)

    return router
