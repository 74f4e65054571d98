"""What gradio_client calls: Gradio's own upload, then `predict(..., api_name="/caption")`."""

from __future__ import annotations

from typing import Any

import gradio as gr

from captioner.caption import Caption
from captioner.errors import CaptionerError, ConfigError
from captioner_serving.server.addresses import whole_client
from captioner_serving.server.problems import ForbiddenError
from captioner_serving.server.service import CaptionService
from captioner_serving.server.store import UploadStore

__all__ = ["add_client_endpoint"]


def _whole(value: Any, name: str) -> int:
    """Read a number of a call, which may hold anything plain.

    Raises:
        ConfigError: it is no whole number.

    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ConfigError(f"{name} {value!r}: must be a whole number")
    return int(value)


def add_client_endpoint(blocks: gr.Blocks, service: CaptionService, store: UploadStore) -> None:
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
            if not store.claim(path, request.session_hash):
                raise ForbiddenError("photos are deleted within ten minutes: send it again")
            own = service.captioner.generation
            beam = None if beam_size is None else _whole(beam_size, "beam_size")
            count = _whole(captions, "captions")
            config = own.asked(beam_size=beam, captions=count, style=str(style or ""))
            client = whole_client(request.client.host if request.client else "")
            (caption,) = await service.caption(
                [path], config, client=client, check_attention=bool(check_attention)
            )
            if not isinstance(caption, Caption):
                raise caption
        except CaptionerError as error:
            return {"image": name, "error": _public_error(error, path, str(name or "the photo"))}
        return {**caption.record(attention=attention), "image": name}

    with blocks, gr.Group(visible=False):
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


def _public_error(error: CaptionerError, path: str, name: str) -> dict[str, str]:
    """An error's record, with the photo's own name where it has the path that we gave it."""
    record = error.record()
    record["detail"] = record["detail"].replace(path, name)
    return record
