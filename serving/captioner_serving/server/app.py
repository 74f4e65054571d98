"""The whole application: the API, and the page behind its guard.

Before both stand one door, one log, one set of headers, one list of names, one password and one
count of what is under way.

    Door -> AccessLog -> SecurityHeaders -> Hosts -> Access -> Admission
                                                                   |
               FastAPI: /api, /metrics, /docs, the page's uploads <-'
                  `-> GradioGuard -> Gradio: /
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TextIO

import gradio as gr
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from captioner import __version__
from captioner.decoding.turns import FairThreads
from captioner.errors import CaptionerError
from captioner.predictor import Captioner
from captioner_serving.allocator import return_memory
from captioner_serving.server.access import Access
from captioner_serving.server.admission import Admission
from captioner_serving.server.api import make_router
from captioner_serving.server.batcher import BusyError
from captioner_serving.server.client import add_client_endpoint
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.credentials import Credentials
from captioner_serving.server.door import Door
from captioner_serving.server.drawing import make_drawing_router
from captioner_serving.server.files import make_file_router
from captioner_serving.server.guard import GradioGuard
from captioner_serving.server.headers import SecurityHeaders
from captioner_serving.server.hosts import Hosts
from captioner_serving.server.log import AccessLog
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.page import SENTENCES, STATIC, make_page, page_head
from captioner_serving.server.problems import (
    InternalError,
    MethodError,
    RequestError,
    RouteError,
    bad_call,
    bad_fields,
    problem,
)
from captioner_serving.server.records import served_record
from captioner_serving.server.samples import make_sample_router
from captioner_serving.server.service import CaptionService
from captioner_serving.server.store import UploadStore
from captioner_serving.server.unread import UnreadResults

__all__ = ["Application"]

_DESCRIPTION = """A photo in, a sentence out, and for every word the place where the model looked.

Errors are `application/problem+json` (RFC 9457): `type`, `title`, `status`, `detail`."""

_LOGGER = logging.getLogger("captioner.server")

_AGAIN = 5  # seconds, after which a client may find room in Gradio's queue
_DRAWN = 2  # pictures at once; one takes up to 100 MB while it is drawn


class Application:
    """A server's parts, put together; `asgi` is what an ASGI server runs.

    Args:
        captioner: the model.
        config: how the server listens and how much it takes on.
        threads: of torch, for the model.
        credentials: who may come in; None: everybody.
        samples: photos to try on the page, by their names; the first is shown at once.
        log: where the access log goes; None: nowhere.
        say: told in words for people what became of photos and requests.

    """

    def __init__(
        self,
        captioner: Captioner,
        config: ServerConfig,
        *,
        threads: int,
        credentials: Credentials | None = None,
        samples: dict[str, Path] | None = None,
        log: TextIO | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self.service = CaptionService(captioner, config, self.metrics, threads=threads, say=say)
        self.store = UploadStore(keep=config.keep, max_bytes=config.max_store)
        # Gradio keeps to this folder too, and every file in it is swept.
        os.environ["GRADIO_TEMP_DIR"] = str(self.store.folder)
        samples, first = samples or {}, None
        for name, path in list(samples.items())[:1]:
            caption = captioner.caption(path, captioner.generation.asked(captions=SENTENCES))
            first = served_record(caption, name=name, attention=True)
        blocks = make_page(captioner, config, samples=samples, first=first)
        add_client_endpoint(blocks, self.service, self.store)
        # Gradio's worker is one of many clients of our own queue, which batches and refuses.
        blocks.queue(default_concurrency_limit=None, max_size=config.queue)
        blocks.state_session_capacity = 100  # of 25 kB; nothing of the page is kept in one
        api = FastAPIOffline(
            title="Captioner",
            version=__version__,
            description=_DESCRIPTION,
            redoc_url=None,
            root_path=config.root_path,
            lifespan=self._lifespan,
        )
        api.include_router(make_router(self.service))
        self._drawing = FairThreads(_DRAWN, name="drawing")
        api.include_router(
            make_drawing_router(self.service.photos, self._drawing, max_bytes=config.max_upload)
        )
        api.include_router(make_sample_router(samples))
        api.mount("/page/static", StaticFiles(directory=STATIC))
        api.include_router(make_file_router(self.store, config))
        self._gradio = _mount(blocks, config)
        for app in (api, self._gradio, *self._pages):
            for kind in (CaptionerError, HTTPException, RequestValidationError):
                app.add_exception_handler(kind, self._answer if app is api else self._answer_call)
        functions = {number: function.inputs for number, function in blocks.fns.items()}
        unread = UnreadResults(blocks._queue)
        api.mount("/", GradioGuard(self._gradio, self.store, functions, unread))
        inside = Access(Admission(api, config, self.metrics), credentials)
        named = Hosts(inside, host=config.host, allowed=config.allowed_hosts)
        logged = AccessLog(SecurityHeaders(named), self.metrics, log, say)
        self.asgi: ASGIApp = Door(
            logged, root_path=config.root_path, trusted_proxies=config.trusted_proxies
        )

    def refuse(self) -> None:
        """Take on nothing more; let streams that never end by themselves end."""
        self.service.refuse()
        for page in self._pages:
            page.stop_event.set()

    def close(self) -> None:
        """Finish what was accepted, and delete every upload."""
        self.service.close()  # and its decoding processes, so that no drawing waits for them
        self._drawing.close()
        self.store.close()

    @property
    def _pages(self) -> list[gr.routes.App]:
        """What Gradio has mounted: its own application, inside of the one that it was given."""
        mounted = [getattr(route, "app", None) for route in self._gradio.routes]
        return [app for app in mounted if isinstance(app, gr.routes.App)]

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(min(20.0, self.config.keep))
                try:
                    await asyncio.to_thread(self.store.sweep)
                except Exception:  # what is not deleted this time is deleted the next
                    _LOGGER.exception("uploads could not be deleted")
                await asyncio.to_thread(return_memory)

        async with self._gradio.router.lifespan_context(self._gradio):
            sweeper = asyncio.create_task(sweep())
            try:
                yield
            finally:
                sweeper.cancel()

    def _answer(self, _: Request, error: Exception) -> Response:
        """Answer every error in one form."""
        if isinstance(error, HTTPException):
            return _http_problem(error)
        if isinstance(error, RequestValidationError):
            error = bad_fields(error.errors())
        if not isinstance(error, CaptionerError):
            raise error
        self.metrics.errors.labels(error.type).inc()
        return problem(error)

    def _answer_call(self, request: Request, error: Exception) -> Response:
        """Answer an error of Gradio's; its client would look for a list in the detail of a 422."""
        if isinstance(error, RequestValidationError):
            error = bad_call(error.errors())
        return self._answer(request, error)


def _http_problem(error: HTTPException) -> Response:
    """Answer in our form where a library has refused: there is no such file, or no such method."""
    if error.status_code in (403, 404):  # Gradio has paths that it does not open
        answer = problem(RouteError("there is no such file here: the page is at /"))
    elif error.status_code == 503:
        answer = problem(BusyError(_AGAIN))
    elif error.status_code >= 500:
        answer = problem(InternalError())
    else:
        kind = MethodError if error.status_code == 405 else RequestError
        answer = problem(kind(str(error.detail)))
    answer.headers.update(error.headers or {})
    return answer


def _mount(blocks: gr.Blocks, config: ServerConfig) -> FastAPI:
    """Put the page into an application of its own, so that the guard can stand before it."""
    # Without this, Gradio takes itself for not launched and does not check the paths of files
    # that clients name.
    blocks.has_launched = True
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
        mcp_server=False,
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
