"""The web page: static HTML, CSS and JavaScript (static/) inside Gradio Blocks.

The browser posts photos to the public API, and draws words, heat and overlay from the record.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import gradio as gr
from jinja2 import BaseLoader, ChoiceLoader, DictLoader

from captioner.caption import Caption
from captioner.captioner import Captioner
from captioner.drawing.overlay import drawing_constants
from captioner.errors import ConfigError
from captioner.generation.config import MAX_BEAM_SIZE
from captioner.vision.image import open_image
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.parts import limits_of, read_static, with_parts

SENTENCES = 3
"""The number of sentences that the page shows for the sample."""

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


def add_page(
    captioner: Captioner,
    config: ServerConfig,
    *,
    models: Sequence[str],
    samples: Mapping[str, Path],
    first: Sequence[dict[str, Any]],
) -> None:
    """Add the page to the Gradio blocks in whose context this is called.

    Args:
        captioner: the first model, for the default settings.
        config: limits of the server.
        models: the names of all models; each captions every photo.
        samples: sample photos by name.
        first: the records of the sample that is shown at the start, one per model; or none.
    """
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


@cache
def put_preview() -> None:
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


def draw_preview(caption: Caption, path: Path) -> bytes:
    """Draw the picture in previews of links: the overlay of a sample, as a JPEG."""
    try:
        picture = caption.overlay(photo=path)
    except ConfigError:  # a model without attention
        picture = open_image(path)
    picture.save(buffer := io.BytesIO(), "JPEG", quality=90)
    return buffer.getvalue()


def page_head() -> str:
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
