"""The page: a photo goes in, its sentence comes out, and each word shows where it comes from."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from captioner.caption import Caption
from captioner.errors import CaptionerError
from captioner.generation.config import MAX_BEAM_SIZE, GenerationConfig
from captioner.image import open_image
from captioner_serving.server.elements import make_element, read_static
from captioner_serving.server.pictures import CaptionShelf
from captioner_serving.server.problems import ForbiddenError
from captioner_serving.server.service import CaptionService
from captioner_serving.server.store import UploadStore
from captioner_serving.server.viewer import describe, make_viewer

__all__ = ["SENTENCES", "Page", "make_page"]

SENTENCES = 3
"""The caption and the two next best: enough to see whether the model wavers."""

# Of the bundled checkpoint; its card has more.
LIMITS = (
    "Trained on 12,420 photos, of people, dogs, sports and streets above all: what it has not seen "
    "it takes for something that it has, it miscounts, it cannot read, and it guesses sex and age."
)


_ANY = "What this model has not seen in its training it takes for something that it has."

# Our functions take files as they are named, and the store opens them; Gradio opens none.
_EVENT: dict[str, Any] = {
    "preprocess": False,
    "show_progress": "hidden",
    "api_visibility": "private",
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page's functions work with.

    service: captions.
    store: the files that visitors uploaded.
    shelf: the captions whose pictures may be fetched.
    samples: photos to try, by their names.
    """

    service: CaptionService
    store: UploadStore
    shelf: CaptionShelf
    samples: dict[str, Path]

    async def caption(
        self,
        photo: dict[str, Any] | None,
        sample: str | None,
        beam_size: float,
        captions: float,
        request: gr.Request,
    ) -> dict[str, Any] | None:
        """Caption the visitor's photo, or the sample, as the viewer's value."""
        name = photo.get("orig_name") if photo else sample
        try:
            source = self._find(photo, sample, request)
            if source is None:
                return None
            config = self._generation(beam_size, min(captions, beam_size))  # two sliders
            (caption,) = await self.service.caption([source], config)
            if not isinstance(caption, Caption):
                raise caption
        except CaptionerError as error:
            return {"error": _public(error, photo), "name": name}
        return describe(caption, token=self.shelf.put(caption), name=name)

    async def on_photo(
        self,
        photo: dict[str, Any] | None,
        beam_size: float,
        captions: float,
        request: gr.Request,
    ) -> tuple[dict[str, Any] | None, None]:
        """Show a photo's caption, or nothing when it is taken away; no sample is shown then."""
        return await self.caption(photo, None, beam_size, captions, request), None

    async def on_sample(
        self, beam_size: float, captions: float, request: gr.Request, event: gr.EventData
    ) -> tuple[dict[str, Any] | None, str, None]:
        """Show a sample's caption, and empty the photo's field."""
        name = str(event.sample)
        return await self.caption(None, name, beam_size, captions, request), name, None

    async def record(
        self,
        image: dict[str, Any] | None,
        beam_size: float,
        captions: float,
        attention: bool,
        request: gr.Request,
    ) -> dict[str, Any]:
        """Caption one image for gradio_client, as the record of the command line and the API."""
        name = image.get("orig_name") if image else None
        try:
            source = self._find(image, None, request)
            if source is None:
                raise ForbiddenError("there is no image: pass handle_file('photo.jpg')")
            config = self._generation(beam_size, captions)
            (caption,) = await self.service.caption([source], config)
            if not isinstance(caption, Caption):
                raise caption
        except CaptionerError as error:
            return {"image": name, "error": _public(error, image)}
        return {**caption.record(attention=attention), "image": name}

    def _generation(self, beam_size: float, captions: float) -> GenerationConfig:
        own = self.service.captioner.generation
        return own.asked(beam_size=int(beam_size), captions=int(captions))

    def _find(
        self, photo: dict[str, Any] | None, sample: str | None, request: gr.Request
    ) -> str | Path | None:
        """The file to open: one that this session uploaded, or a sample; never another.

        Raises:
            ForbiddenError: the session has no such file, or no longer.

        """
        if photo is None:
            return self.samples.get(sample or "")
        path = str(photo.get("path"))
        if not self.store.claim(path, request.session_hash):
            raise ForbiddenError("photos are deleted within ten minutes: drop it again")
        return path


def _public(error: CaptionerError, photo: dict[str, Any] | None) -> dict[str, str]:
    """An error's record, with the photo's own name where it has the path that we gave it."""
    record = error.record()
    if photo is not None:
        name = str(photo.get("orig_name") or "the photo")
        record["detail"] = record["detail"].replace(str(photo.get("path")), name)
    return record


def make_page(page: Page, *, first: tuple[str, Caption] | None) -> gr.Blocks:
    """Lay out the page.

    Args:
        page: the functions behind it.
        first: the name and caption of a sample to show before anybody has dropped a photo.

    """
    value = None
    if first is not None:
        token = page.shelf.put(first[1], forever=True)
        value = describe(first[1], token=token, name=first[0])
    blocks = gr.Blocks(title="Captioner", analytics_enabled=False)
    with blocks:
        gr.HTML(read_static("header.html"), elem_id="header")
        sample = gr.State(first[0] if first else None)
        with gr.Row(elem_id="columns"):
            with gr.Column(scale=2, min_width=280):
                photo = gr.Image(
                    label="Your photo",
                    sources=["upload", "webcam", "clipboard"],
                    type="filepath",
                    height=230,
                    buttons=[],
                    elem_id="photo",
                )
                samples = _make_samples(page.samples)
                beam_size, captions = _make_settings(page.service.captioner.generation.beam_size)
            with gr.Column(scale=5, min_width=320):
                name = page.service.captioner.name.name
                viewer = make_viewer(value, known_limits=LIMITS if name == "bundled" else _ANY)
        photo.input(page.on_photo, [photo, beam_size, captions], [viewer, sample], **_EVENT)
        samples.click(page.on_sample, [beam_size, captions], [viewer, sample, photo], **_EVENT)
        gr.on(
            [beam_size.input, captions.input],
            page.caption,
            [photo, sample, beam_size, captions],
            viewer,
            trigger_mode="always_last",
            api_name="on_settings",  # or it would be called caption, as the public one is
            **_EVENT,
        )
        _add_client_endpoint(page)
    # Gradio's worker is one of many clients of our own queue, which batches and refuses.
    blocks.queue(default_concurrency_limit=None, max_size=page.service.config.queue)
    blocks.state_session_capacity = 1000
    return blocks


def _make_settings(beam: int) -> tuple[gr.Slider, gr.Slider]:
    with gr.Accordion("Search settings", open=False):
        beam_size = gr.Slider(
            1,
            MAX_BEAM_SIZE,
            value=beam,
            step=1,
            label="Beam size",
            info="sentences followed at a time; 1 takes the likeliest word each time",
        )
        captions = gr.Slider(
            1, 5, value=SENTENCES, step=1, label="Sentences", info="the best, and the next best"
        )
    return beam_size, captions


def _make_samples(samples: dict[str, Path]) -> gr.HTML:
    pictures = []
    for name, path in samples.items():
        picture = open_image(path, at_least=160)
        picture.thumbnail((400, 160))
        picture.save(buffer := io.BytesIO(), "JPEG", quality=80)
        data = base64.b64encode(buffer.getvalue()).decode()
        pictures.append({"name": name, "data": f"data:image/jpeg;base64,{data}"})
    return make_element("samples", pictures)


def _add_client_endpoint(page: Page) -> None:
    """Give gradio_client `predict(image, beam_size, captions, attention, api_name="/caption")`."""
    with gr.Group(visible=False):
        inputs = [
            gr.Image(type="filepath", label="image"),
            gr.Number(5, precision=0, label="beam_size"),
            gr.Number(1, precision=0, label="captions"),
            gr.Checkbox(False, label="attention"),
        ]
        gr.Button("Caption").click(
            page.record, inputs, gr.JSON(label="record"), preprocess=False, api_name="caption"
        )
