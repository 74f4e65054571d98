"""MCP for assistants: the tool `describe_image`, over streamable HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from captioner import __version__
from captioner.caption import Caption, Word
from captioner.drawing.overlay import attention_density
from captioner.errors import CaptionerError, ImageNotFoundError
from captioner.photos.transform import Box
from captioner_serving.networks import client_of
from captioner_serving.server.bodies import decode_photo, parse_body, parse_object
from captioner_serving.server.errors import RefusedError
from captioner_serving.server.service import CaptionService

_TOOL = "describe_image"
_INPUTS = ("image", "image_url", "image_path")
_PLACES = (
    ("top left", "top", "top right"),
    ("left", "middle", "right"),
    ("bottom left", "bottom", "bottom right"),
)


class McpServer:
    """An ASGI application with the tool. `manager.run()` must be entered while it serves."""

    def __init__(self, service: CaptionService) -> None:
        from mcp import types  # slow to import
        from mcp.server.lowlevel import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        config = service.config
        inputs = {"image": "The photo's file in base64, or as a data URL"}
        if config.allow_urls:
            inputs["image_url"] = "The photo's http or https URL, on a public host"
        if config.mcp_folder is not None:
            inputs["image_path"] = f"The photo's file in the server's folder {config.mcp_folder}"
        schema = {
            "type": "object",
            "properties": {
                name: {"type": "string", "description": text} for name, text in inputs.items()
            },
            **({"required": [*inputs]} if len(inputs) == 1 else {}),
        }
        description = (
            "Describe a photo in one sentence, with the probability that it is right and where in "
            f"the photo each thing is. Give exactly one of {', '.join(inputs)}."
        )
        tool = types.Tool(name=_TOOL, description=description, inputSchema=schema)
        server: Server[Any, Request] = Server("captioner", version=__version__)

        async def list_tools(_: types.ListToolsRequest) -> types.ServerResult:
            return types.ServerResult(types.ListToolsResult(tools=[tool]))

        async def call_tool(call: types.CallToolRequest) -> types.ServerResult:
            is_error = False
            try:
                request = server.request_context.request
                client = "" if request is None else client_of(request.scope)
                text = await _call(service, call.params.name, call.params.arguments or {}, client)
            except CaptionerError as error:
                text, is_error = str(error), True
            content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
            return types.ServerResult(types.CallToolResult(content=content, isError=is_error))

        server.request_handlers[types.ListToolsRequest] = list_tools
        server.request_handlers[types.CallToolRequest] = call_tool
        # BodyLimits has already limited the request.
        size = 2 * config.max_upload + 2_000_000
        self.manager = StreamableHTTPSessionManager(
            server, stateless=True, json_response=True, max_request_body_size=size
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and answer it."""
        bodies = [await parse_body(Request(scope, receive), _checked)]

        async def again() -> Message:
            if not bodies:
                return await receive()
            return {"type": "http.request", "body": bodies.pop()}

        await self.manager.handle_request(scope, again, send)


def _checked(body: bytearray) -> bytes:
    parse_object(body)
    return bytes(body)


async def _call(service: CaptionService, tool: str, arguments: dict[str, Any], client: str) -> str:
    if tool != _TOOL:
        raise RefusedError("bad-request", f"Unknown tool {tool[:40]!r}: use {_TOOL}")
    given = {name: value for name in _INPUTS if (value := arguments.get(name))}
    if len(given) != 1 or not isinstance(value := next(iter(given.values())), str):
        raise RefusedError("bad-request", f"give exactly one of {', '.join(_INPUTS)}, as a text")
    photo: bytes | str = value
    if "image" in given:
        photo = await run_in_threadpool(decode_photo, value)
    elif "image_path" in given:
        folder, most = service.config.mcp_folder, service.config.max_upload
        if folder is None:
            raise RefusedError("forbidden", "this server does not open files: send the photo")
        photo = await run_in_threadpool(_read, value, folder, most)
    generation = service.captioner.generation.for_request(captions=2)
    return describe(await service.caption_one(service.readable(photo), generation, client=client))


def _read(name: str, folder: Path, max_bytes: int) -> bytes:
    """Read a file in the folder, at most a byte more than `max_bytes`."""
    try:
        path = (folder / name).resolve()  # follows symbolic links
        if not path.is_relative_to(folder.resolve()):
            raise RefusedError("forbidden", f"{name[:200]!r} is not in the folder {folder}")
        if not path.is_file():  # reading a pipe could block
            raise ImageNotFoundError(f"there is no file {name[:200]!r}")
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise ImageNotFoundError(f"{name[:200]!r} cannot be read") from error


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
        place = _place_of(word, caption.box)
        trust = "unknown" if word.trust is None else f"{word.trust:.0%}"
        lines.append(f"- {word.text}: {place}, {trust}{', doubtful' * word.doubtful}")
    lines += [
        f"The next best sentence: {next_best.text}." for next_best in caption.alternatives[:1]
    ]
    return "\n".join(lines)


def _place_of(word: Word, box: Box) -> str:
    """Return the name of the part of the photo, out of 3 x 3, with most of a word's attention."""
    if word.attention is None:
        return "unknown"
    ninths = (
        attention_density(word.attention, (90, 90), box=box).reshape(3, 30, 3, 30).sum(axis=(1, 3))
    )
    row, column = divmod(int(ninths.argmax()), 3)
    if ninths[row, column] < 2 / 9:  # less than twice an even share
        return "spread over the photo"
    return _PLACES[row][column]
