"""The ASGI application: middleware, the API, and the page.

    RequestContext -> CORSMiddleware -> Access -> BodyLimits
                                                      |
    FastAPI: /api, /v1, /metrics, /docs, /page, ... <-'
                                       `-> GradioFiles: /

The application keeps no state between requests, except uploads and results of gradio_client, so it
scales horizontally.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TextIO

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from captioner import __version__
from captioner.captioner import Captioner
from captioner.errors import CaptionerError, ImageError
from captioner_serving.server import STATIC, gradio_page, ollama, openai, pictures
from captioner_serving.server import api as captions
from captioner_serving.server.bodies import BodyLimits
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.errors import problem
from captioner_serving.server.gradio_calls import GradioCalls
from captioner_serving.server.mcp import McpServer
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.middleware import Access, RequestContext
from captioner_serving.server.records import served_record
from captioner_serving.server.service import CaptionService, start_reader

_DESCRIPTION = """A photo in, a sentence out, and for every word the place where the model looked.

Errors are `application/problem+json` (RFC 9457): `type`, `title`, `status`, `detail`."""


class Application:
    """The application of a server. `asgi` is the ASGI application.

    The models have different names; the first is the default. `threads` is the number of threads
    that torch uses for them. Without `tokens`, by name, everyone has access. The page shows the
    first of the `samples` at the start. `say` is called with messages for the terminal.
    """

    def __init__(
        self,
        *captioners: Captioner,
        config: ServerConfig,
        threads: int,
        tokens: Mapping[str, str] | None = None,
        samples: dict[str, Path] | None = None,
        log: TextIO | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        for captioner in captioners:
            captioner.check_trust(config.minimum_trust, setting="minimum_trust")
        self.metrics, self._config = Metrics(), config
        self._reader = start_reader(captioners[0], config)
        services = [
            CaptionService(captioner, config, self.metrics, self._reader, threads=threads)
            for captioner in captioners
        ]
        self.services = {service.captioner.name: service for service in services}
        self._mcp = McpServer(services[0]) if config.mcp else None
        self._calls = GradioCalls(services[0])
        api = self._api(samples or {})
        for kind in (CaptionerError, HTTPException, Exception):
            api.add_exception_handler(kind, self._answer)
        bounded = BodyLimits(api, config, self.metrics)
        access = Access(bounded, tokens, origins=config.allowed_origins)
        self.asgi: ASGIApp = RequestContext(
            self._with_cors(access),
            self.metrics,
            log=log,
            say=say,
            max_rest=4 * config.max_upload,
            routes=api.routes,
            root_path=config.root_path,
            frame_ancestors=config.frame_ancestors,
            hosts=config.accepted_hosts,
        )

    def _page(self, samples: Mapping[str, Path]) -> ASGIApp:
        """Return the application with the Gradio page."""
        captioners = [service.captioner for service in self.services.values()]
        first = [
            served_record(captioner.caption(path, config), name=name, attention=True)
            for name, path in list(samples.items())[:1]
            for captioner in captioners
            for config in [captioner.generation.for_request(captions=gradio_page.SENTENCES)]
        ]
        blocks = gradio_page.build(
            captioners[0], self._config, models=[*self.services], samples=samples, first=first
        )
        return gradio_page.GradioFiles(blocks, self._config)

    def _api(self, samples: Mapping[str, Path]) -> FastAPI:
        """Return the application of the API and the page."""
        api = FastAPIOffline(
            title="Captioner",
            version=__version__,
            description=_DESCRIPTION,
            redoc_url=None,
            redirect_slashes=False,
            lifespan=self.lifespan,
        )
        api.state.services = self.services
        for routes in (captions, pictures, ollama, openai, self._calls):
            api.router.routes += routes.router.routes
        for name, path in samples.items():
            api.add_route(f"/page/samples/{name}", _file(path))
        api.mount("/page/static", StaticFiles(directory=STATIC))
        if self._mcp is not None:
            for route in ("/gradio_api/mcp", "/gradio_api/mcp/"):
                api.router.routes.append(Route(route, self._mcp, methods=["POST"]))
        page = self._page(samples)
        api.router.routes += [Route(path, page, methods=["GET"]) for path in gradio_page.FILES]
        return api

    def _with_cors(self, app: ASGIApp) -> ASGIApp:
        """Add CORS for the allowed origins, if there are any."""
        if not self._config.allowed_origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=self._config.allowed_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", "Content-Type"),
            expose_headers=("Retry-After", "X-Request-ID"),
        )

    def refuse(self) -> None:
        """Refuse new photos."""
        for service in self.services.values():
            service.batcher.refuse()

    def close(self) -> None:
        """Finish accepted photos."""
        for service in self.services.values():
            service.batcher.close()
        self._reader.close()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Run MCP, if it is on."""
        async with contextlib.nullcontext() if self._mcp is None else self._mcp.manager.run():
            yield

    def _answer(self, _: Request, error: Exception) -> Response:
        """Return the problem document of an error."""
        if isinstance(error, CaptionerError) and not isinstance(error, ImageError):
            # The service has counted errors of photos.
            self.metrics.errors.labels(error.record()["type"]).inc()
        return problem(error)


def _file(path: Path) -> Callable[[Request], Response]:
    return lambda _: FileResponse(path)
