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

import gradio as gr
import torch
from fastapi import FastAPI
from gradio import utils
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from captioner.captioner import Captioner
from captioner.errors import ConfigError
from captioner_serving.server.app import Application
from captioner_serving.server.config import ServerConfig

_SHARE_HOSTS = "*.gradio.live"
_NOTEBOOKS = ("http://localhost:*", "http://127.0.0.1:*")
_COLAB = ("https://colab.research.google.com", "https://*.googleusercontent.com")
_TLS_OPTIONS = {"ssl_keyfile", "ssl_certfile", "ssl_keyfile_password", "ssl_verify"}


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
        self._server: _Server | None = None
        self._close = contextlib.ExitStack()
        weakref.finalize(self, self._close.close)  # also when the process exits

    def launch(
        self,
        *,
        share: bool | None = None,
        inline: bool | None = None,
        inbrowser: bool = False,
        server_name: str | None = None,
        server_port: int | None = None,
        auth: tuple[str, str] | None = None,
        prevent_thread_lock: bool = False,
        quiet: bool = False,
        height: int = 800,
        width: int | str = "100%",
        **tls: Any,
    ) -> tuple[FastAPI, str, str | None]:
        """Start the server; other arguments as for gradio.Blocks.launch.

        Args:
            auth: a name and a token, the password with HTTP Basic.
            tls: ssl_keyfile, ssl_certfile, ssl_keyfile_password, ssl_verify.

        Returns:
            The application, the local URL, and the share link or None.

        Raises ConfigError: the demo is running, or `auth` is not a name and a token.
        """
        if self._server is not None:
            raise ConfigError("this demo is already running: call close() first")
        if unknown := tls.keys() - _TLS_OPTIONS:
            raise ConfigError(
                f"launch() has no option {min(unknown)}: pass limits of the server to gradio_demo()"
            )
        host = server_name or os.environ.get("GRADIO_SERVER_NAME", self._config.host)
        config = _launch_config(self._config, host, is_shared=_is_shared(share))
        application = self._application(config, tokens=_tokens(auth))
        self._server = _Server(application, config)
        app, local, shared = self._server.launch(
            share=share,
            inline=inline,
            inbrowser=inbrowser,
            server_name=host,
            server_port=server_port,
            prevent_thread_lock=prevent_thread_lock,
            quiet=quiet,
            height=height,
            width=width,
            ssr_mode=False,
            run_history=False,
            pwa=False,
            enable_monitoring=False,
            mcp_server=False,
            app_kwargs={"lifespan": application.lifespan},
            **tls,
        )
        return app, local, shared

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
        if self._server is not None and self._server.blocks is not None:
            self._server.blocks.close(verbose=False)
        self._server = None
        self._close.close()

    def _application(
        self, config: ServerConfig, tokens: dict[str, str] | None = None
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


class _Server(gr.Server):
    """Gradio's launcher for an application that answers all requests itself."""

    def __init__(self, application: Application, config: ServerConfig) -> None:
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
        super().__init__(docs_url=None, redoc_url=None, openapi_url=None)
        self._guarded = _behind_proxies(application, config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
        elif scope.get("path") == "/gradio_api/startup-events":
            # launch() requests it, without a password.
            await JSONResponse(True)(scope, receive, send)
        else:
            await self._guarded(scope, receive, send)


def _behind_proxies(application: Application, config: ServerConfig) -> ASGIApp:
    """Read the client's address from the headers of trusted proxies."""
    proxies = list(config.trusted_proxies)
    return cast(ASGIApp, ProxyHeadersMiddleware(cast(Any, application.asgi), proxies))


def _is_shared(share: bool | None) -> bool:
    if share is not None:
        return share
    hosted = utils.colab_check() or utils.is_hosted_notebook()
    return hosted or os.environ.get("GRADIO_SHARE", "").lower() == "true"


def _launch_config(config: ServerConfig, host: str, *, is_shared: bool) -> ServerConfig:
    """Allow the hosts of share links, and the frames of notebooks."""
    hosts, frames = config.allowed_hosts, config.frame_ancestors
    if is_shared:
        hosts += (_SHARE_HOSTS,)
    if utils.ipython_check():
        frames += _NOTEBOOKS + _COLAB
    return replace(config, host=host, allowed_hosts=hosts, frame_ancestors=frames)


def _tokens(auth: tuple[str, str] | None) -> dict[str, str]:
    if auth is None:
        return {}
    if not (
        isinstance(auth, tuple)
        and len(auth) == 2
        and all(isinstance(part, str) and part for part in auth)
    ):
        raise ConfigError("auth must be a tuple of a name and a token")
    return dict([auth])
