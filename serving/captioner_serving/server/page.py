"""The page: a photo goes in, its sentence comes out, and each word shows where it comes from."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import gradio as gr

from captioner.caption import Caption
from captioner.errors import CaptionerError, ConfigError
from captioner.generation.config import MAX_BEAM_SIZE
from captioner.vision.image import open_image
from captioner_serving.server.addresses import whole_client
from captioner_serving.server.captions import SENTENCES, PageCaptions, public_error
from captioner_serving.server.elements import make_element, read_static
from captioner_serving.server.problems import ForbiddenError
from captioner_serving.server.viewer import describe, make_viewer

__all__ = ["make_page"]

# Of the bundled checkpoint; its card has more.
_LIMITS = (
    "Trained on 12,420 photos, of people, dogs, sports and streets above all: what it has not seen "
    "it takes for something that it has, it miscounts, it cannot read, and it guesses sex and age."
)
_ANY = "What this model has not seen in its training it takes for something that it has."


def make_page(page: PageCaptions, *, first: tuple[str, Caption] | None) -> gr.Blocks:
    """Lay out the page.

    Args:
        page: the captions behind it.
        first: the name and caption of a sample to show before anybody has chosen a photo.

    """
    captioner = page.service.captioner
    config = captioner.generation.asked(captions=SENTENCES)
    value = None
    if first is not None:
        name, caption = first
        token, kept = page.keep(caption, config, name=name, owner=None, forever=True)
        value = describe(kept, token=token, sentence=0)
    settings: dict[str, int | bool | str] = {
        "beam_size": config.beam_size,
        "captions": config.captions,
        "check_attention": False,
    }
    if style := captioner.vocabulary.style(config.style):
        settings["style"] = style
    blocks = gr.Blocks(title="Captioner", analytics_enabled=False)
    with blocks:
        gr.HTML(read_static("header.html"), elem_id="header")
        with gr.Row(elem_id="columns"):
            make_element(
                "intake", _pictures(page.samples), max_upload=page.service.config.max_upload
            )
            make_viewer(value, settings=settings, styles=captioner.vocabulary.styles)
            limits = _LIMITS if captioner.name.name == "bundled" else _ANY
            styles = captioner.vocabulary.styles
            make_element("notes", limits, most=MAX_BEAM_SIZE, styles=styles)
        _add_client_endpoint(page)
    # Gradio's worker is one of many clients of our own queue, which batches and refuses.
    blocks.queue(default_concurrency_limit=None, max_size=page.service.config.queue)
    blocks.state_session_capacity = 100  # of 25 kB; nothing of the page is kept in one
    return blocks


def _pictures(samples: dict[str, Path]) -> list[dict[str, str]]:
    pictures = []
    for name, path in samples.items():
        picture = open_image(path, at_least=160)
        picture.thumbnail((400, 160))
        picture.save(buffer := io.BytesIO(), "JPEG", quality=80)
        data = base64.b64encode(buffer.getvalue()).decode()
        pictures.append({"name": name, "data": f"data:image/jpeg;base64,{data}"})
    return pictures


def _whole(value: Any, name: str) -> int:
    """Read a number of a call, which may hold anything plain.

    Raises:
        ConfigError: it is no whole number.

    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ConfigError(f"{name} {value!r}: must be a whole number")
    return int(value)


def _add_client_endpoint(page: PageCaptions) -> None:
    """Give gradio_client `predict(image, ..., api_name="/caption")`, with the fields of the API."""

    async def record(
        request: gr.Request,
        image: dict[str, Any] | None,
        beam_size: Any = None,
        captions: Any = 1,
        attention: bool = False,
        check_attention: bool = False,
        style: Any = None,
    ) -> dict[str, Any]:
        """Caption one image, as the record of the command line and the API."""
        name, path = None, ""
        try:
            if image is None:
                raise ForbiddenError("there is no image: pass handle_file('photo.jpg')")
            name, path = image.get("orig_name"), str(image.get("path"))
            if not page.store.claim(path, request.session_hash):
                raise ForbiddenError("photos are deleted within ten minutes: send it again")
            own = page.service.captioner.generation
            beam = None if beam_size is None else _whole(beam_size, "beam_size")
            count = _whole(captions, "captions")
            config = own.asked(beam_size=beam, captions=count, style=str(style or ""))
            client = whole_client(request.client.host if request.client else "")
            (caption,) = await page.service.caption(
                [path], config, client=client, check_attention=bool(check_attention)
            )
            if not isinstance(caption, Caption):
                raise caption
        except CaptionerError as error:
            return {"image": name, "error": public_error(error, path, str(name or "the photo"))}
        return {**caption.record(attention=attention), "image": name}

    with gr.Group(visible=False):
        inputs = [
            gr.Image(type="filepath", label="image"),
            gr.Number(None, precision=0, label="beam_size"),  # the checkpoint's
            gr.Number(1, precision=0, label="captions"),
            gr.Checkbox(False, label="attention"),
            gr.Checkbox(False, label="check_attention"),
            gr.Textbox(None, label="style"),  # the checkpoint's
        ]
        # Our functions take files as they are named, and the store opens them; Gradio opens none.
        gr.Button("Caption").click(
            record, inputs, gr.JSON(label="record"), preprocess=False, api_name="caption"
        )
