"""An assistant's way in, over MCP: `describe_image`, behind Gradio's own server of that protocol.

What Gradio offers beside this one function is taken away: it would be called by a client of its
own, which fetches addresses, and goes wherever a request says that this server is.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.events import api
from starlette.concurrency import run_in_threadpool

from captioner import __version__
from captioner.caption import Caption
from captioner.errors import (
    ConfigError,
    ImageNotFoundError,
    ImageTooLargeError,
    MissingExtraError,
)
from captioner.vision.transform import Box
from captioner.word import Word
from captioner_serving.decoding.decoded import Readable
from captioner_serving.server.body import decode_photo
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.links import WebPhoto
from captioner_serving.server.problems import RefusedError
from captioner_serving.server.request import client_key
from captioner_serving.server.service import CaptionService

__all__ = ["add_assistant_function", "check_installed", "describe", "limit_to_function", "place_of"]

_NAME = "describe_image"
_ANSWERED = ("InitializeRequest", "PingRequest", "ListToolsRequest", "CallToolRequest")
_PLACES = (
    ("top left", "top", "top right"),
    ("left", "middle", "right"),
    ("bottom left", "bottom", "bottom right"),
)


def check_installed() -> None:
    """Raise MissingExtraError where the package is not there that Gradio's server stands on."""
    from gradio.mcp import GradioMCPServer

    if not hasattr(GradioMCPServer, "StreamableHTTPSessionManager"):
        raise MissingExtraError("captioner serve --mcp", "mcp")


def add_assistant_function(blocks: gr.Blocks, service: CaptionService) -> None:
    """Give assistants their function; it takes what the server was started to take."""
    config = service.config

    async def describe_image(
        request: gr.Request, image: str = "", image_url: str = "", image_path: str = ""
    ) -> str:
        """Caption a photo.

        Args:
            request: who asks.
            image: the photo's file in base64, or as a data URL
            image_url: the photo's http or https address
            image_path: the photo's file on the machine of this server
        """
        photo = await _photo(config, image, image_url, image_path)
        client = client_key(request.client.host if request.client else "")
        asked = service.captioner.generation.for_request(captions=2)
        return describe(await service.caption_one(photo, asked, client=client))

    ways = [f"`{name}`, {text[0].lower()}{text[1:]}" for name, text in _ways(config).items()]
    said = (
        "Say in a sentence what a photo shows, how likely that is right, and where in the photo "
        f"each thing lies. Give one of {'; '.join(ways)}."
    )
    # It would repeat the names that strangers call.
    logging.getLogger("mcp").setLevel(logging.ERROR)
    with blocks:
        # Not through Gradio's queue: ours batches and refuses, and that one needs a client.
        api(describe_image, api_name=_NAME, api_description=said, queue=False)


def _ways(config: ServerConfig) -> dict[str, str]:
    """Return the arguments that this server takes, with their descriptions."""
    ways = {"image": "The photo's file in base64, or as a data URL"}
    if config.allow_urls:
        ways["image_url"] = "The photo's http or https address, on a public host"
    if config.mcp_folder is not None:
        ways["image_path"] = f"The photo's file in the folder {config.mcp_folder} of this server"
    return ways


def limit_to_function(blocks: gr.Blocks, config: ServerConfig) -> None:
    """Leave Gradio's MCP server nothing but `describe_image`, with an exact schema."""
    server = blocks.mcp_server_obj
    if server is None:
        raise ConfigError(f"--mcp does not work with this version of Gradio: {blocks.mcp_error}")
    endpoints = server.tool_to_endpoint
    server.tool_to_endpoint = {name: at for name, at in endpoints.items() if at == f"/{_NAME}"}
    handlers = server.mcp_server.request_handlers
    for kind in [kind for kind in handlers if kind.__name__ not in _ANSWERED]:
        del handlers[kind]
    server.mcp_server.version = __version__
    ways = _ways(config)
    properties = {name: {"type": "string", "description": text} for name, text in ways.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if len(ways) == 1:
        schema["required"] = [*ways]

    def input_schema(*_: object, **__: object) -> tuple[dict[str, Any], list[list[str | int]]]:
        return schema, []  # no place of a file: an argument is text

    server.get_input_schema = input_schema  # type: ignore[method-assign]


async def _photo(
    config: ServerConfig, image: str, image_url: str, image_path: str
) -> bytes | Readable:
    """Get the photo that is named in one of three ways.

    Raises:
        RefusedError: in none or several, or in one that this server does not take.
        ImageError: it cannot be had.
    """
    if sum(map(bool, (image, image_url, image_path))) != 1:
        raise RefusedError("bad-request", "name one photo: as image, image_url or image_path")
    most = config.max_upload
    if image_url:
        if not config.allow_urls:
            raise RefusedError("forbidden", "this server fetches no addresses")
        return WebPhoto(image_url, most)
    if image_path:
        if config.mcp_folder is None:
            raise RefusedError("forbidden", "this server opens no files")
        return await run_in_threadpool(_read, image_path, config.mcp_folder, most)
    data = decode_photo(image)
    if len(data) > most:
        raise _too_large(most)
    return data


def _read(name: str, folder: Path, most: int) -> bytes:
    """Read a file that lies in the folder, wherever links in it lead."""
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise RefusedError("forbidden", f"{name[:200]!r} does not lie in the folder {folder}")
        if not path.is_file():  # a pipe would never end
            raise ImageNotFoundError(f"there is no file {name[:200]!r}")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise ImageNotFoundError(f"{name[:200]!r} cannot be read") from error
    if len(data) > most:
        raise _too_large(most)
    return data


def _too_large(most: int) -> ImageTooLargeError:
    return ImageTooLargeError(f"the photo has more than the {most / 1e6:g} MB that are taken")


def describe(caption: Caption) -> str:
    """Tell a caption, what is doubtful in it, and where its words lie, in lines of text."""
    lines = [f"Caption: {caption.text}."]
    if caption.trust is not None:
        lines.append(f"Probability that all of it is right: {caption.trust:.0%}.")
    if caption.unfamiliar:
        lines.append("The picture is unlike all that the model learned from: do not rely on this.")
    if caption.doubt:
        lines.append(f"{caption.doubt}.")
    named = [word for word in caption.words if word.trust is not None] or list(caption.words)
    lines.append("Of its words, where in the photo the model looked, and the probability of each:")
    for word in named:
        place = place_of(word, caption.box) or "unknown"
        trust = "unknown" if word.trust is None else f"{word.trust:.0%}"
        lines.append(f"- {word.text}: {place}, {trust}{', doubtful' * word.doubtful}")
    lines += [f"The next best sentence: {other.text}." for other in caption.alternatives[:1]]
    return "\n".join(lines)


def place_of(word: Word, box: Box) -> str | None:
    """Name the ninth of the photo that a word looked at most; None where the model does not attend.

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
    if ninths[row, column] < 2 / 9:  # of less than twice an even share
        return "spread over the photo"
    return _PLACES[row][column]
