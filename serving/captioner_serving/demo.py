"""The page as a Gradio demo, for Spaces, notebooks and other applications.

Gradio only opens the port, the frame in the notebook and the share link. `Application` answers all
requests, so the limits and checks of `captioner serve` apply.
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
    """A demo that can be launched, or mounted into a FastAPI application.

    Args:
        captioners: the models, with different names.
        samples: sample photos by name.
        config: limits, host names and origins; the methods set `host`, `port` and `root_path`.
    """

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
        """Start the server.

        Args:
            auth: a name and a token, the password with HTTP Basic.
            options: share, inline, inbrowser, server_name, server_port, prevent_thread_lock, quiet,
                height, width and ssl_*, as for gradio.Blocks.launch.

        Returns:
            The application, the local URL, and the share link or None.

        Raises ConfigError: the demo is running, an option is unknown, or `auth` is not a name and
            a token.
        """
        if self._launcher is not None:
            raise ConfigError("this demo is already running: call close() first")
        if unknown := options.keys() - Launcher.OPTIONS:
            raise ConfigError(
                f"launch() has no option {min(unknown)}: pass limits of the server to gradio_demo()"
            )
        if auth is not None and not (len(auth) == 2 and all(auth)):
            raise ConfigError("auth must be a tuple of a name and a token")
        host = options.get("server_name") or os.environ.get("GRADIO_SERVER_NAME", self._config.host)
        config = launch_config(self._config, host, share=options.get("share"))
        application = self._application(config, tokens=dict([auth] if auth else []))
        self._launcher = Launcher(_behind_proxies(application, config))
        return self._launcher.start(application.lifespan, **{**options, "server_name": host})

    def mount_to(self, app: FastAPI, path: str) -> FastAPI:
        """Mount the page and the API at a path of another application.

        The application's host names, except localhost, must be in `allowed_hosts`.
        """
        config = replace(self._config, root_path=path.rstrip("/"))
        application = self._application(config)
        outer = app.router.lifespan_context

        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with outer(app) as state, application.lifespan(app):
                yield state

        app.router.lifespan_context = lifespan
        app.mount(config.root_path, _behind_proxies(application, config))
        return app

    def close(self) -> None:
        """Finish accepted photos, close the port, and delete uploads."""
        if self._launcher is not None:
            self._launcher.stop()
        self._launcher = None
        self._close.close()

    def _application(
        self, config: ServerConfig, *, tokens: dict[str, str] | None = None
    ) -> Application:
        application = Application(
            *self._captioners,
            config=config,
            threads=torch.get_num_threads(),
            tokens=tokens,
            samples=dict(self._samples),
        )
        self._close.callback(application.close)
        self._close.callback(application.refuse)
        return application


def _behind_proxies(application: Application, config: ServerConfig) -> ASGIApp:
    """Read the client's address from the headers of trusted proxies."""
    proxies = list(config.trusted_proxies)
    return cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, application.asgi), proxies))
