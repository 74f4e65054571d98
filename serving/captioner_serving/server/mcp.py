"""MCP for assistants: the tool `describe_image`, served by Gradio's MCP server.

Everything else that Gradio's MCP server offers is removed, because it would download URLs and
connect to the host that a request names.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.events import api
from starlette.concurrency import run_in_threadpool

from captioner import __version__
from captioner.caption import Caption, Word
from captioner.errors import (
    ConfigError,
    ImageNotFoundError,
    ImageTooLargeError,
    MissingExtraError,
)
from captioner.vision.transform import Box
from captioner_serving.decoding.decoded import Readable
from captioner_serving.server.body import decode_photo
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.links import WebPhoto
from captioner_serving.server.problems import NO_URLS, RefusedError
from captioner_serving.server.request import client_key
from captioner_serving.server.service import CaptionService

_NAME = "describe_image"
_ANSWERED = ("InitializeRequest", "PingRequest", "ListToolsRequest", "CallToolRequest")
_PLACES = (
    ("top left", "top", "top right"),
    ("left", "middle", "right"),
    ("bottom left", "bottom", "bottom right"),
)


def check_installed() -> None:
    """Raise MissingExtraError if the package that Gradio's MCP server needs is not installed."""
    from gradio.mcp import GradioMCPServer

    if not hasattr(GradioMCPServer, "StreamableHTTPSessionManager"):
        raise MissingExtraError("captioner serve --mcp", "mcp")


def add_assistant_function(service: CaptionService) -> None:
    """Add the MCP tool, with the kinds of input that the server allows."""
    config = service.config

    async def describe_image(
        request: gr.Request, image: str = "", image_url: str = "", image_path: str = ""
    ) -> str:
        """Caption a photo.

        Args:
            request: the request.
            image: the photo's file in base64, or as a data URL
            image_url: the photo's http or https URL
            image_path: the photo's file on the machine of this server
        """
        photo = await _photo(config, image, image_url, image_path)
        client = client_key(request.client.host if request.client else "")
        generation = service.captioner.generation.for_request(captions=2)
        return describe(await service.caption_one(photo, generation, client=client))

    inputs = [f"`{name}`, {text[0].lower()}{text[1:]}" for name, text in _inputs(config).items()]
    description = (
        "Describe a photo in one sentence, with the probability that it is right and where in the "
        f"photo each thing is. Give one of {'; '.join(inputs)}."
    )
    # Warnings would contain names from clients.
    logging.getLogger("mcp").setLevel(logging.ERROR)
    # Without Gradio's queue, because the service has its own.
    api(describe_image, api_name=_NAME, api_description=description, queue=False)


def _inputs(config: ServerConfig) -> dict[str, str]:
    """Return the arguments that this server allows, with their descriptions."""
    inputs = {"image": "The photo's file in base64, or as a data URL"}
    if config.allow_urls:
        inputs["image_url"] = "The photo's http or https URL, on a public host"
    if config.mcp_folder is not None:
        inputs["image_path"] = f"The photo's file in the folder {config.mcp_folder} of this server"
    return inputs


def limit_to_function(blocks: gr.Blocks, config: ServerConfig) -> None:
    """Remove everything but `describe_image` from Gradio's MCP server, and set an exact schema."""
    server = blocks.mcp_server_obj
    if server is None:
        raise ConfigError(f"--mcp does not work with this version of Gradio: {blocks.mcp_error}")
    # The package's own limit is 4 MiB; BodyLimits has already checked the request.
    server.manager.asgi_app.max_body_size = 2 * config.max_upload + 2_000_000
    endpoints = server.tool_to_endpoint
    server.tool_to_endpoint = {tool: at for tool, at in endpoints.items() if at == f"/{_NAME}"}
    handlers = server.mcp_server.request_handlers
    for kind in [kind for kind in handlers if kind.__name__ not in _ANSWERED]:
        del handlers[kind]
    server.mcp_server.version = __version__
    inputs = _inputs(config)
    properties = {name: {"type": "string", "description": text} for name, text in inputs.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if len(inputs) == 1:
        schema["required"] = [*inputs]

    def input_schema(*_: object, **__: object) -> tuple[dict[str, Any], list[list[str | int]]]:
        return schema, []  # no argument is a file

    server.get_input_schema = input_schema  # type: ignore[method-assign]


async def _photo(
    config: ServerConfig, image: str, image_url: str, image_path: str
) -> bytes | Readable:
    """Return the photo from the only argument that is given.

    Raises:
        RefusedError: none or several are given, or one that this server does not allow.
        ImageError: the photo cannot be read.
    """
    if sum(map(bool, (image, image_url, image_path))) != 1:
        raise RefusedError("bad-request", "give exactly one of image, image_url and image_path")
    most = config.max_upload
    if image_url:
        if not config.allow_urls:
            raise RefusedError("forbidden", NO_URLS)
        return WebPhoto(image_url, most)
    if image_path:
        if config.mcp_folder is None:
            raise RefusedError("forbidden", "this server does not open files: send the photo")
        return await run_in_threadpool(_read, image_path, config.mcp_folder, most)
    data = decode_photo(image)
    if len(data) > most:
        raise _too_large(most)
    return data


def _read(name: str, folder: Path, most: int) -> bytes:
    """Read a file in the folder; symbolic links are resolved first."""
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise RefusedError("forbidden", f"{name[:200]!r} is not in the folder {folder}")
        if not path.is_file():  # reading a pipe could block
            raise ImageNotFoundError(f"there is no file {name[:200]!r}")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise ImageNotFoundError(f"{name[:200]!r} cannot be read") from error
    if len(data) > most:
        raise _too_large(most)
    return data


def _too_large(most: int) -> ImageTooLargeError:
    return ImageTooLargeError(f"the photo is larger than the limit of {most / 1e6:g} MB")


def describe(caption: Caption) -> str:
    """Describe a caption as text: its trust, and the trust and place of each word."""
    lines = [f"Caption: {caption.text}."]
    if caption.trust is not None:
        lines.append(f"Probability that the whole caption is right: {caption.trust:.0%}.")
    if caption.is_unfamiliar:
        lines.append("The picture is unlike the training photos: the caption may be wrong.")
    if caption.doubt:
        lines.append(f"{caption.doubt}.")
    words = [word for word in caption.words if word.trust is not None] or list(caption.words)
    lines.append("Words, with where the model looked and the probability that they are right:")
    for word in words:
        place = place_of(word, caption.box) or "unknown"
        trust = "unknown" if word.trust is None else f"{word.trust:.0%}"
        lines.append(f"- {word.text}: {place}, {trust}{', doubtful' * word.doubtful}")
    lines += [
        f"The next best sentence: {next_best.text}." for next_best in caption.alternatives[:1]
    ]
    return "\n".join(lines)


def place_of(word: Word, box: Box) -> str | None:
    """Return the name of the part, out of 3 x 3, with most of a word's attention.

    Returns "spread over the photo" if every part has less than twice its even share; None if the
    word has no attention.

    >>> import torch
    >>> from captioner.drawing.overlay import WHOLE
    >>> corner = torch.zeros(3, 3)
    >>> corner[2, 0] = 1
    >>> place_of(Word(text="dog", probability=1, attention=corner), WHOLE)
    'bottom left'
    """
    if word.attention is None:
        return None
    ninths = word.attention_map((90, 90), box=box).reshape(3, 30, 3, 30).sum(axis=(1, 3))
    row, column = divmod(int(ninths.argmax()), 3)
    if ninths[row, column] < 2 / 9:  # less than twice an even share
        return "spread over the photo"
    return _PLACES[row][column]
