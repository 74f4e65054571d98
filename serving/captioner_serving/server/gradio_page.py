"""The Gradio page: the Blocks with the page and the endpoint, and all internal parts of Gradio.

The page is static HTML, CSS and JavaScript (static/). The browser posts photos to the public API,
and draws words, heat and overlay from the record. gradio_client calls the endpoint:
predict(handle_file("photo.jpg"), ..., api_name="/caption").

Functions that use an internal part of Gradio are at the end. Each has a test against the installed
version.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

import gradio as gr
from fastapi import FastAPI
from gradio import utils
from jinja2 import BaseLoader, ChoiceLoader, DictLoader
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from captioner.caption import Caption
from captioner.captioner import Captioner
from captioner.drawing.overlay import drawing_constants
from captioner.errors import CaptionerError, ConfigError
from captioner.generation.config import MAX_BEAM_SIZE
from captioner.photos.open import open_image
from captioner_serving.server.api import CaptionFields
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.parts import limits_of, read_static, with_parts
from captioner_serving.server.problems import RefusedError, bad_fields
from captioner_serving.server.request import client_key
from captioner_serving.server.service import CaptionService

SENTENCES = 3
"""The number of sentences that the page shows for the sample."""

ENDPOINT = "caption"
"""The name of the endpoint."""

PREVIEW = "page/preview.jpg"
"""The path of the picture in previews of links to the page."""

_ID = "captioner"
_SUMMARY = "A photo in, a sentence out, and for every word the place where the model looked."
_PREVIEW_TAGS = f"""
<meta name="description" content="{_SUMMARY}" />
<meta property="og:type" content="website" />
<meta property="og:title" content="Captioner" />
<meta property="og:description" content="{_SUMMARY}" />
{{% for part in config['components'] if part.props.elem_id == '{_ID}' and part.props.value %}}
<meta property="og:image" content="{{{{ config['root'] }}}}/{PREVIEW}" />
<meta name="twitter:card" content="summary_large_image" />
{{% endfor %}}
"""

# Relative to the page, because a proxy may add a path.
_START = """import(new URL("page/static/page.js", document.baseURI).href)
  .then((module) => module.start(element, props));"""

_SHARE_HOSTS = "*.gradio.live"
_NOTEBOOKS = ("http://localhost:*", "http://127.0.0.1:*")
_COLAB = ("https://colab.research.google.com", "https://*.googleusercontent.com")


def build(
    service: CaptionService,
    *,
    models: Sequence[str],
    samples: Mapping[str, Path],
    first: Sequence[dict[str, Any]],
) -> gr.Blocks:
    """Return the page with the endpoint.

    Args:
        service: the first model.
        models: the names of all models; each captions every photo.
        samples: sample photos by name.
        first: the records of the sample that is shown at the start, one per model; or none.
    """
    blocks = gr.Blocks(title="Captioner", analytics_enabled=False)
    with blocks:  # once, because Gradio builds an application when the block ends
        _add_page(service.captioner, service.config, models, samples, first)
        _add_endpoint(service)
    # No limit in Gradio, because the service has its own queue.
    blocks.queue(default_concurrency_limit=None, max_size=service.config.queue)
    return blocks


def _add_page(
    captioner: Captioner,
    config: ServerConfig,
    models: Sequence[str],
    samples: Mapping[str, Path],
    first: Sequence[dict[str, Any]],
) -> None:
    html = with_parts(read_static("page.html"))
    if config.allow_urls:
        html = html.replace("Drop photos anywhere", "Drop photos anywhere,<br>or paste a URL")
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


def draw_preview(caption: Caption, path: Path) -> bytes:
    """Draw the picture in previews of links: the overlay of a sample, as a JPEG."""
    try:
        picture = caption.overlay(photo=path)
    except ConfigError:  # a model without attention
        picture = open_image(path)
    picture.save(buffer := io.BytesIO(), "JPEG", quality=90)
    return buffer.getvalue()


def _style_sheets() -> str:
    """Return the style sheets, for the head of the document.

    Gradio's `css` option would rewrite them and lose rules.
    """
    return f"<style>{read_static('page.css')}{read_static('viewer.css')}</style>"


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


def _add_endpoint(service: CaptionService) -> None:
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
            record, inputs, gr.JSON(label="record"), preprocess=False, api_name=ENDPOINT
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


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()  # an upload: see GradioGuard
    except OSError as error:
        raise RefusedError(
            "forbidden", "the photo was deleted, because uploads are temporary: upload it again"
        ) from error


def mount(blocks: gr.Blocks, config: ServerConfig) -> FastAPI:
    """Return an application that serves the page and deletes old uploads."""
    check_paths(blocks)
    delete_uploads(blocks, seconds=config.upload_ttl)
    limit_sessions(blocks)
    put_preview_tags()
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
        head=_style_sheets(),
    )
    return app


# Internal parts of Gradio


def check_paths(blocks: gr.Blocks) -> None:
    """Let Gradio check the paths of files that clients name, which `mount_gradio_app` omits."""
    blocks.has_launched = True


def delete_uploads(blocks: gr.Blocks, *, seconds: float) -> None:
    """Delete uploads after a time."""
    blocks.delete_cache = int(min(30, seconds)), int(seconds)


def limit_sessions(blocks: gr.Blocks) -> None:
    """Limit the sessions in memory, which the page does not use."""
    blocks.state_session_capacity = 100


def endpoint_of(blocks: gr.Blocks) -> tuple[int, int]:
    """Return the identifier of the endpoint's function, and the number of its values."""
    (function,) = [entry for entry in blocks.fns.values() if entry.api_name == ENDPOINT]
    return function._id, len(function.inputs)


def drop_results(blocks: gr.Blocks, session: str) -> None:
    """Drop the calls and results of a session."""
    queue = blocks._queue
    events = queue.pending_event_ids_session.pop(session, set())
    for waiting in queue.event_queue_per_concurrency_id.values():
        waiting.queue[:] = [event for event in waiting.queue if event._id not in events]
    for identifier in events:
        event = queue.event_ids_to_events.pop(identifier, None)
        if event is not None:
            event.alive = False  # stops its messages
    queue.pending_messages_per_session.pop(session, None)


def has_pending_calls(blocks: gr.Blocks, session: str) -> bool:
    """Return whether calls of a session are not answered yet."""
    return bool(blocks._queue.pending_event_ids_session.get(session))


def applications(app: FastAPI) -> list[gr.routes.App]:
    """Return the applications that `mount_gradio_app` mounted into ours."""
    apps = [getattr(route, "app", None) for route in app.routes]
    return [found for found in apps if isinstance(found, gr.routes.App)]


def stop_streams(app: FastAPI) -> None:
    """End the open streams of events."""
    for found in applications(app):
        found.stop_event.set()


@cache
def put_preview_tags() -> None:
    """Replace the preview tags in Gradio's HTML document by those of this page.

    This changes all Gradio pages of the process. The preview has a picture only if the page opens
    with a sample photo.
    """
    environment = gr.routes.templates.env
    loader = cast(BaseLoader, environment.loader)
    name = "frontend/index.html"
    source, _, _ = loader.get_source(environment, name)
    source = re.sub(r'<meta\s+(?:property="og:|name="twitter:)[^>]*>', "", source)
    changed = {name: source.replace("</head>", f"{_PREVIEW_TAGS}</head>", 1)}
    environment.loader = ChoiceLoader([DictLoader(changed), loader])


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
        self,
        lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
        **options: Any,
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
