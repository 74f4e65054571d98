"""The page as a Gradio demo, for Spaces, notebooks and other applications.

Gradio opens the port, the frame in a notebook and the share link. `Application` answers requests.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from captioner.captioner import Captioner
from captioner.errors import ConfigError
from captioner_serving.server.app import Application
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.gradio_page import Launcher, launch_config


class Demo:
    """A demo that can be launched, or mounted into a FastAPI application; see `gradio_demo`."""

    def __init__(
        self, *captioners: Captioner, samples: Mapping[str, Path], config: ServerConfig
    ) -> None:
        self._captioners, self._samples, self._config = captioners, samples, config
        self._launcher: Launcher | None = None
        self._close = contextlib.ExitStack()
        weakref.finalize(self, self._close.close)  # also when the process exits

    def launch(
        self, *, auth: tuple[str, str] | None = None, **options: Any
    ) -> tuple[FastAPI, str, str | None]:
        """Start the server; return the application, the local URL, and the share link or None.

        Args:
            auth: a name and a token, the password with HTTP Basic.
            options: as for gradio.Blocks.launch; see Launcher.OPTIONS.

        Raises ConfigError: the demo is running, or an option is unknown or invalid.
        """
        if self._launcher is not None:
            raise ConfigError("this demo is already running: call close() first")
        if unknown := options.keys() - Launcher.OPTIONS:
            raise ConfigError(
                f"launch() has no option {min(unknown)}: pass limits of the server to gradio_demo()"
            )
        is_pair = isinstance(auth, tuple) and len(auth) == 2
        if auth is not None and not (
            is_pair and all(isinstance(part, str) and part for part in auth)
        ):
            raise ConfigError("auth must be a tuple of a name and a token")
        host = options.get("server_name") or os.environ.get("GRADIO_SERVER_NAME", self._config.host)
        config = launch_config(self._config, host, share=options.get("share"))
        application, asgi = self._application(config, tokens=dict([auth] if auth else []))
        self._launcher = Launcher(asgi)
        return self._launcher.start(application.lifespan, **{**options, "server_name": host})

    def mount_to(self, app: FastAPI, path: str) -> FastAPI:
        """Mount the page and the API at a path of another application.

        The application's host names, except localhost, must be in `allowed_hosts`.
        """
        config = replace(self._config, root_path=path.rstrip("/"))
        application, asgi = self._application(config)
        outer = app.router.lifespan_context

        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with outer(app) as state, application.lifespan(app):
                yield state

        app.router.lifespan_context = lifespan
        app.mount(config.root_path, asgi)
        return app

    def close(self) -> None:
        """Finish accepted photos, close the port, and delete uploads."""
        if self._launcher is not None:
            self._launcher.stop()
        self._launcher = None
        self._close.close()

    def _application(
        self, config: ServerConfig, *, tokens: dict[str, str] | None = None
    ) -> tuple[Application, ASGIApp]:
        threads, samples = torch.get_num_threads(), dict(self._samples)
        application = Application(
            *self._captioners, config=config, threads=threads, tokens=tokens, samples=samples
        )
        self._close.callback(application.close)
        self._close.callback(application.refuse)
        proxies = list(config.trusted_proxies)  # whose headers have the client's address
        asgi = ProxyHeadersMiddleware(cast(Any, application.asgi), proxies)
        return application, cast(ASGIApp, asgi)
