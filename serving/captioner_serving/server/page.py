"""The page: a photo goes in, its sentence comes out, and each word shows where it comes from.

It is HTML, CSS and JavaScript of our own (static/) in Gradio's Blocks. The browser posts a photo to
the API that all others use, and draws words, heat and overlay itself from the record.
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
from captioner.drawing.tables import drawing_tables
from captioner.errors import ConfigError
from captioner.generation.config import MAX_BEAM_SIZE
from captioner.predictor import Captioner
from captioner.vision.image import open_image
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.parts import limits_of, read_static, with_parts

__all__ = ["PREVIEW", "SENTENCES", "draw_preview", "make_page", "page_head", "put_preview"]

SENTENCES = 3
"""The caption and the two next best: enough to see whether the model wavers."""

PREVIEW = "page/preview.jpg"
"""The address of the picture that stands for the page where somebody links to it."""

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

# Relative to the page, which a proxy may show below a path of its own.
_START = """import(new URL("page/static/page.js", document.baseURI).href)
  .then((module) => module.start(element, props));"""


def make_page(
    captioner: Captioner,
    config: ServerConfig,
    *,
    models: Sequence[str],
    samples: Mapping[str, Path],
    first: Sequence[dict[str, Any]],
) -> gr.Blocks:
    """Lay out the page.

    Args:
        captioner: the model behind it, whose settings it has.
        config: how much the server takes.
        models: the names of all that caption each photo, side by side; that one's first.
        samples: photos to try, by their names.
        first: the records, one of each model, of a sample that is shown before anybody has chosen
            a photo, named by its `image`; none shows nothing yet.
    """
    html = with_parts(read_static("page.html"))
    if config.allow_urls:
        html = html.replace("Drop photos anywhere", "Drop photos anywhere,<br>or paste an address")
    blocks = gr.Blocks(title="Captioner", analytics_enabled=False)
    with blocks:
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
            drawing=drawing_tables(),  # static/heat.js draws by them
        )
    return blocks


@cache
def put_preview() -> None:
    """Say in Gradio's document what a link to it shows: Gradio's own names and pictures go.

    Gradio loads its document from one place: all of its pages in this process are changed. Only
    those that begin with a sample's record show its picture.
    """
    environment = gr.routes.templates.env
    loader = cast(BaseLoader, environment.loader)
    name = "frontend/index.html"
    source, _, _ = loader.get_source(environment, name)
    source = re.sub(r'<meta\s+(?:property="og:|name="twitter:)[^>]*>', "", source)
    own = {name: source.replace("</head>", f"{_PREVIEW_TAGS}</head>", 1)}
    environment.loader = ChoiceLoader([DictLoader(own), loader])


def draw_preview(caption: Caption, path: Path) -> bytes:
    """Draw what a link to the page shows, as a JPEG: where a word comes from."""
    try:
        picture = caption.overlay(photo=path)
    except ConfigError:  # a model without attention
        picture = open_image(path)
    picture.save(buffer := io.BytesIO(), "JPEG", quality=90)
    return buffer.getvalue()


def page_head() -> str:
    """The style of the page and of the viewer in it, for the head of the document.

    Gradio writes what it gets as `css` anew, and loses half of it.
    """
    return f"<style>{read_static('page.css')}{read_static('viewer.css')}</style>"


def _thumbnail(path: Path) -> str:
    picture = open_image(path, at_least=160)
    picture.thumbnail((400, 160))
    picture.save(buffer := io.BytesIO(), "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _settings(captioner: Captioner) -> dict[str, int | bool | str]:
    """What the page asks for until the visitor changes it, by the fields of the API."""
    config = captioner.generation.for_request(captions=SENTENCES)
    style = captioner.vocabulary.style(config.style)
    return {
        "beam_size": config.beam_size,
        "captions": config.captions,
        "check_attention": False,
        **({"style": style} if style else {}),
        **({"minimum_trust": 0} if captioner.trust is not None else {}),
    }
