"""What a server is told when it starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Interval

from captioner.errors import ConfigError
from captioner.paths import there_is_no
from captioner.vision.bounds import Positive, check_bounds
from captioner.vision.image import MAX_PIXELS
from captioner_serving.server.request import parse_address

__all__ = ["ServerConfig", "parse_size"]

# As browsers send it: a name with other letters is xn--... there.
_NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII | re.IGNORECASE)
_ORIGIN = re.compile(r"https?://(\*\.)?[\w.-]+(:(\d+|\*))?", re.ASCII)
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How a server listens, and how much it takes on.

    Raises ConfigError: a value cannot work; the detail names every such field.
    """

    # Only this machine, until somebody decides otherwise.
    host: str = "127.0.0.1"
    # Gradio's own, so that what is written about Gradio pages holds. 0: any free one.
    port: Annotated[int, Interval(ge=0, le=65535)] = 7860
    # Bytes of one request, all its images together: a 48-megapixel phone photo is about 15 MB.
    max_upload: Annotated[int, Ge(1000)] = 20_000_000
    # Images encoded and decoded together. Beyond 16 a batch gains little and delays its first.
    max_batch: Annotated[int, Interval(ge=1, le=1024)] = 16
    # Places for images accepted and not yet answered; a costly one takes several (batcher.Order).
    # Over it, 503: better than answers nobody waits for.
    queue: Positive = 64
    # The path under which a proxy shows the server, such as /captioner.
    root_path: str = ""
    # Seconds that uploads of gradio_client are kept; a sweep deletes them within ten minutes.
    upload_ttl: Annotated[float, Interval(ge=1, le=570)] = 540.0
    # Width times height of the largest photo that is decoded.
    max_pixels: Positive = MAX_PIXELS
    # Bytes of all bodies in memory, on their way in and until they are answered.
    max_bodies: int = 200_000_000
    # Connections at a time. Half of the files that systems let a process have open.
    max_connections: Annotated[int, Ge(8)] = 500
    # Seconds for a request's body; large bodies get more (body.py).
    body_timeout: Annotated[float, Interval(ge=0.1, le=600)] = 15.0
    # Names for which the server answers; see `names`.
    allowed_hosts: tuple[str, ...] = ()
    # Addresses and networks of proxies that say truly who their client is.
    trusted_proxies: tuple[str, ...] = ()
    # Origins whose pages may show this one in a frame.
    frame_ancestors: tuple[str, ...] = ()
    # Origins whose pages may call the API.
    allowed_origins: tuple[str, ...] = ()
    # Whether the API fetches photos by their address, from public hosts.
    allow_urls: bool = False
    # Whether assistants may call it, over MCP, and where photos lie that they may name.
    mcp: bool = False
    mcp_folder: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether it listens to this machine alone."""
        address = parse_address(self.host)
        return self.host == "localhost" or (address is not None and address.is_loopback)

    @property
    def names(self) -> list[str]:
        """For what the server answers, as Starlette's TrustedHostMiddleware has it.

        A page from elsewhere can point a name of its own at this machine, and would then read what
        only this machine may.
        """
        if not self.is_local and not self.allowed_hosts:
            return ["*"]
        given = [f"[{name}]" if ":" in name else name for name in (self.host, *self.allowed_hosts)]
        return ["localhost", "*.localhost", "127.0.0.1", "[::1]", *given]

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if self.max_bodies < self.max_upload:
            yield f"max_bodies is {self.max_bodies}: use max_upload, {self.max_upload}, or more"
        if not re.fullmatch(r"(/[\w.~-]+)*", self.root_path):
            yield (
                f"root_path is {self.root_path}: use a path such as /captioner, without a slash "
                "at its end"
            )
        if self.mcp_folder is not None and not (self.mcp and self.is_local):
            yield "--mcp-folder is for assistants of this machine: it needs --mcp, and no --host"
        if self.mcp_folder is not None and not self.mcp_folder.is_dir():
            yield f"--mcp-folder: {there_is_no('folder', self.mcp_folder)}"
        for name in self.allowed_hosts:
            if not _NAME.fullmatch(name) and parse_address(name) is None:
                yield (
                    f"--allowed-host {name!r}: use a name such as example.org, which holds for "
                    "every port, or *.example.org for all names below; no scheme, port or path"
                )
        for name in self.trusted_proxies:
            try:
                ip_network(name)
            except ValueError as error:
                yield f"--trusted-proxy: {error}: use an address such as 127.0.0.1 or 10.0.0.0/8"
        for name in self.frame_ancestors:
            if not _ORIGIN.fullmatch(name):
                yield f"--frame-ancestor {name!r}: use an origin such as https://example.org"
        for name in self.allowed_origins:
            if not _ORIGIN.fullmatch(name) or "*" in name:
                yield f"--allow-origin {name!r}: use an origin such as https://example.org"


def parse_size(text: str) -> int:
    """Turn "20MB", "512 kB" or "1000000" into bytes (units of 1000).

    Raises ConfigError: it is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in _UNITS:
        raise ConfigError(f"{text!r} is not a size: write a number and B, kB, MB or GB, like 20MB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
