"""The Gradio page, and all uses of Gradio: Blocks, the mounted application, the launcher of demos.

The page is static HTML, CSS and JavaScript (static/). The browser posts photos to the public API,
and draws words, heat and overlay from the record. Gradio serves the document, its configuration
and its assets; it runs no function and opens no file (see `GradioCalls`).
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import gradio as gr
from fastapi import FastAPI
from gradio import utils
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.captioner import Captioner
from captioner.drawing.overlay import drawing_constants
from captioner.generation.config import MAX_BEAM_SIZE
from captioner.photos.open import open_image
from captioner_serving.server import limits_of, read_static, with_parts
from captioner_serving.server.config import ServerConfig

SENTENCES = 3
"""The number of sentences that the page shows for the sample."""

_ID = "captioner"

# Relative to the page, because a proxy may add a path.
_START = """import(new URL("page/static/page.js", document.baseURI).href)
  .then((module) => module.start(element, props));"""

_SHARE_HOSTS = "*.gradio.live"
_NOTEBOOKS = ("http://localhost:*", "http://127.0.0.1:*")
_COLAB = ("https://colab.research.google.com", "https://*.googleusercontent.com")


def build(
    captioner: Captioner,
    config: ServerConfig,
    *,
    models: Sequence[str],
    samples: Mapping[str, Path],
    first: Sequence[dict[str, Any]],
) -> gr.Blocks:
    """Return the page with the endpoint.

    `captioner` is the first of the `models`, which each caption every photo. `first` has the
    records of the sample that is shown at the start, one per model; or it is empty.
    """
    html = with_parts(read_static("page.html"))
    if config.allow_urls:
        html = html.replace("photos anywhere", "photos or a URL anywhere")
    blocks = gr.Blocks(title="Captioner", analytics_enabled=False)
    with blocks:  # once, because Gradio builds an application when the block ends
        gr.HTML(
            [*first],
            html_template=html,
            js_on_load=_START,
            apply_default_css=False,
            elem_id=_ID,
            samples=[{"name": name, "data": _thumbnail(path)} for name, path in samples.items()],
            settings=_settings(captioner),
            models=[*models],
            styles=captioner.vocabulary.styles,
            most=MAX_BEAM_SIZE,
            max_upload=config.max_upload,
            allow_urls=config.allow_urls,
            limits=limits_of(models),
            drawing=drawing_constants(),  # for static/heat.js
        )
        gr.events.api(caption)
    return blocks


def _thumbnail(path: Path) -> str:
    picture = open_image(path, at_least=160)
    picture.thumbnail((400, 160))
    picture.save(buffer := io.BytesIO(), "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _settings(captioner: Captioner) -> dict[str, int | bool | str]:
    """Return the default settings of the page, as fields of the API."""
    config = captioner.generation.for_request(captions=SENTENCES)
    style = captioner.vocabulary.style(config.style)
    return {
        "beam_size": config.beam_size,
        "captions": config.captions,
        "check_attention": False,
        **({"style": style} if style else {}),
        **({"minimum_trust": 0} if captioner.trust is not None else {}),
    }


def caption(
    image: gr.FileData,
    beam_size: int | None = None,
    captions: int = 1,
    attention: bool = False,
    check_attention: bool = False,
    style: str | None = None,
    minimum_trust: float | None = None,
) -> dict[str, Any]:
    """Describe the endpoint of gradio_client, which `GradioCalls` answers.

    It returns a record, as `captioner caption --json` does.
    """
    raise NotImplementedError


FILES = (
    *("/", "/config", "/theme.css", "/manifest.json", "/favicon.ico", "/robots.txt"),
    *("/gradio_api/info", "/gradio_api/app_id", "/gradio_api/login_check"),
    *("/assets/{path:path}", "/static/{path:path}"),
)
"""The paths of Gradio that the page and gradio_client need. Others open files and URLs."""


class GradioFiles:
    """An ASGI application with the document of the page, its configuration and its assets."""

    def __init__(self, blocks: gr.Blocks, config: ServerConfig) -> None:
        self._app = _mounted(blocks, config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        # Without Origin, because Gradio would allow any origin to read the answer.
        headers = [header for header in scope["headers"] if header[0] != b"origin"]
        status = 200

        async def pass_on(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if status < 400:
                await send(message)

        await self._app({**scope, "headers": headers, "query_string": b""}, receive, pass_on)
        if status >= 400:
            raise HTTPException(404)


def _mounted(blocks: gr.Blocks, config: ServerConfig) -> FastAPI:
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
        # Gradio's `css` option would rewrite the style sheets and lose rules.
        head=f"<style>{read_static('page.css')}{read_static('viewer.css')}</style>",
    )
    return app


def launch_config(config: ServerConfig, host: str, *, share: bool | None) -> ServerConfig:
    """Allow the hosts of share links, and the frames of notebooks."""
    hosts, frames = config.allowed_hosts, config.frame_ancestors
    if share is None:
        is_hosted = utils.colab_check() or utils.is_hosted_notebook()
        share = is_hosted or os.environ.get("GRADIO_SHARE", "").lower() == "true"
    if share:
        hosts += (_SHARE_HOSTS,)
    if utils.ipython_check():
        frames += _NOTEBOOKS + _COLAB
    return replace(config, host=host, allowed_hosts=hosts, frame_ancestors=frames)


class Launcher(gr.Server):
    """Gradio's launcher for an application that answers all requests itself."""

    OPTIONS: ClassVar = {
        "share", "inline", "inbrowser", "server_name", "server_port", "prevent_thread_lock",
        "quiet", "height", "width",
        "ssl_keyfile", "ssl_certfile", "ssl_keyfile_password", "ssl_verify",
    }  # fmt: skip

    def __init__(self, application: ASGIApp) -> None:
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
        super().__init__(docs_url=None, redoc_url=None, openapi_url=None)
        self._application = application

    def start(
        self, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]], **options: Any
    ) -> tuple[FastAPI, str, str | None]:
        """Open the port, and the frame or share link; see `gradio.Blocks.launch`."""
        app, local, shared = self.launch(
            **{"height": 800, "width": "100%", **options},
            ssr_mode=False,
            run_history=False,
            pwa=False,
            enable_monitoring=False,
            mcp_server=False,
            app_kwargs={"lifespan": lifespan},
        )
        return app, local, shared

    def stop(self) -> None:
        """Close the port."""
        if self.blocks is not None:
            self.blocks.close(verbose=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
        elif scope.get("path") == "/gradio_api/startup-events":
            # launch() requests it, without a token.
            await JSONResponse(True)(scope, receive, send)
        else:
            await self._application(scope, receive, send)
