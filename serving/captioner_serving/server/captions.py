"""What the page asks for: a photo in, its caption out, and word of the queue while it waits.

A caption is made as lines of JSON: {"ahead": n} whenever that many photos of the queue come first,
and at the end the viewer's value (see viewer.py), or {"error": {...}}.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from captioner.caption import Caption
from captioner.errors import CaptionerError, ConfigError, ImageNotFoundError
from captioner.generation.config import GenerationConfig
from captioner_serving.server.addresses import client_of
from captioner_serving.server.batcher import OnPlace
from captioner_serving.server.cookies import COOKIE
from captioner_serving.server.pictures import GONE, CaptionShelf, KeptCaption
from captioner_serving.server.problems import GoneError, RequestError
from captioner_serving.server.service import CaptionService
from captioner_serving.server.store import UploadStore
from captioner_serving.server.uploads import Form, Upload, read_form
from captioner_serving.server.viewer import describe

__all__ = ["SENTENCES", "PageCaptions", "make_caption_router", "public_error"]

SENTENCES = 3
"""The caption and the two next best: enough to see whether the model wavers."""

_FIELDS = ("sample", "token", "beam_size", "captions", "style", "check_attention")


@dataclass(frozen=True)
class _Photo:
    """What a visitor wants a caption of: the file to open, and its own name."""

    path: Path
    name: str
    owner: str | None


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A photo, and how it is to be captioned."""

    photo: _Photo
    config: GenerationConfig
    check_attention: bool


@dataclass(frozen=True, kw_only=True)
class PageCaptions:
    """What the page's captions are made with.

    service: captions.
    store: the photos that visitors uploaded.
    shelf: the captions that may be shown again.
    samples: photos to try, by their names.
    """

    service: CaptionService
    store: UploadStore
    shelf: CaptionShelf
    samples: dict[str, Path]

    async def find(self, request: Request) -> _Request:
        """Read the photo that a request brings or names, and how it is to be captioned.

        Raises:
            CaptionerError: the request is broken, too large, or names what is not there.

        """
        form = await read_form(
            request,
            name="photo",
            max_bytes=self.service.config.max_upload,
            max_files=1,
            fields=_FIELDS,
        )
        captions = _number(form.fields, "captions")
        config = self.service.captioner.generation.asked(
            beam_size=_number(form.fields, "beam_size"),
            captions=1 if captions is None else captions,
            style=form.fields.get("style"),
        )
        return _Request(
            photo=await self._photo(form, request.cookies.get(COOKIE)),
            config=config,
            check_attention=form.fields.get("check_attention") == "true",
        )

    async def _photo(self, form: Form, owner: str | None) -> _Photo:
        if form.files:
            return await run_in_threadpool(self._save, form.files[0], owner)
        if (name := form.fields.get("sample")) is not None:
            if name not in self.samples:
                raise RequestError(f"there is no sample {name[:40]!r}")
            return _Photo(self.samples[name], name, owner=None)
        kept = self.shelf.get(form.fields.get("token", ""), owner)
        return _Photo(Path(kept.caption.image or ""), kept.name, kept.owner)

    async def follow(self, wanted: _Request, client: str) -> AsyncIterator[str]:
        """Caption a photo, and tell how it goes; whoever stops listening leaves the queue."""
        places: asyncio.Queue[int | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def on_place(ahead: int) -> None:
            loop.call_soon_threadsafe(places.put_nowait, ahead)

        task = asyncio.create_task(self._make(wanted, client, on_place))
        task.add_done_callback(lambda _: places.put_nowait(None))
        try:
            while (ahead := await places.get()) is not None:
                yield _line({"ahead": ahead})
            yield _line(task.result())
        except ImageNotFoundError:
            yield _line({"error": GoneError(GONE).record()})
        except CaptionerError as error:
            photo = wanted.photo
            yield _line({"error": public_error(error, str(photo.path), photo.name)})
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def show(
        self, token: str, sentence: int, head: int | None, owner: str | None
    ) -> dict[str, Any]:
        """Make the viewer's value of a caption that is kept, or of one of its alternatives.

        Raises:
            GoneError: it is no longer kept, or is somebody else's.
            ConfigError: it has no such alternative, or the model no such head.

        """
        kept = self.shelf.get(token, owner)
        return await run_in_threadpool(describe, kept, token=token, sentence=sentence, head=head)

    def keep(
        self,
        caption: Caption,
        config: GenerationConfig,
        *,
        name: str,
        owner: str | None,
        forever: bool = False,
    ) -> tuple[str, KeptCaption]:
        """Put a caption on the shelf, and tell its token."""
        kept = KeptCaption(
            caption=caption,
            name=name,
            owner=owner,
            beam_size=config.beam_size,
            captions=config.captions,
        )
        return self.shelf.put(kept, forever=forever), kept

    async def _make(self, wanted: _Request, client: str, on_place: OnPlace) -> dict[str, Any]:
        photo = wanted.photo
        (caption,) = await self.service.caption(
            [photo.path],
            wanted.config,
            client=client,
            on_place=on_place,
            check_attention=wanted.check_attention,
        )
        if not isinstance(caption, Caption):
            raise caption
        token, kept = self.keep(caption, wanted.config, name=photo.name, owner=photo.owner)
        return await run_in_threadpool(describe, kept, token=token, sentence=0)

    def _save(self, file: Upload, owner: str | None) -> _Photo:
        path = self.store.save(file.name, file.data, owner=owner, used=True)
        return _Photo(Path(path), file.name or "photo", owner)


def make_caption_router(page: PageCaptions) -> APIRouter:
    """The page's own routes; other programs have the API."""
    router = APIRouter(prefix="/page/captions", include_in_schema=False)

    @router.post("")
    async def caption(request: Request) -> StreamingResponse:
        client = client_of(request.scope)
        page.service.require_room(client)
        lines = page.follow(await page.find(request), client)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    @router.get("/{token}")
    async def show(
        token: str,
        request: Request,
        sentence: int = Query(default=0, ge=0),
        head: int | None = Query(default=None, ge=1),
    ) -> dict[str, Any]:
        return await page.show(token, sentence, head, request.cookies.get(COOKIE))

    return router


def public_error(error: CaptionerError, path: str, name: str) -> dict[str, str]:
    """An error's record, with the photo's own name where it has the path that we gave it."""
    record = error.record()
    record["detail"] = record["detail"].replace(path, name)
    return record


def _number(fields: dict[str, str], name: str) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} is {text[:40]!r}: use a whole number") from None


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value) + "\n"
