"""The settings of a server, and its tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Interval

from captioner.errors import ConfigError
from captioner.photos.open import MAX_PIXELS
from captioner.shared.paths import there_is_no
from captioner.shared.settings import Positive, check_bounds
from captioner_serving.networks import parse_address

# ASCII only, because browsers send international names as xn--...
_NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII | re.IGNORECASE)
_ORIGIN = re.compile(r"https?://(\*\.)?[\w.-]+(:(\d+|\*))?", re.ASCII)
_TOKEN = re.compile(r"[\w.~+/-]{16,}=*", re.ASCII)  # RFC 6750, with a minimum length
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Address, limits and access of a server.

    Raises ConfigError: fields are invalid; the detail names all of them.
    """

    host: str = "127.0.0.1"  # this machine only
    port: Annotated[int, Interval(ge=0, le=65535)] = 7860  # Gradio's default; 0: any free port
    # Bytes of all images of a request; a 48-megapixel phone photo has about 15 MB.
    max_upload: Annotated[int, Ge(1000)] = 20_000_000
    max_batch: Annotated[int, Interval(ge=1, le=1024)] = 16  # images per batch
    # Admitted images, by cost (batcher.JobSettings); more are refused with 503.
    queue: Positive = 64
    root_path: str = ""  # path of the server behind a proxy, such as /captioner
    max_pixels: Positive = MAX_PIXELS  # larger photos are refused
    # Half of the usual limit of open files.
    max_connections: Annotated[int, Ge(8)] = 500
    allowed_hosts: tuple[str, ...] = ()  # accepted Host headers, see `accepted_hosts`
    trusted_proxies: tuple[str, ...] = ()  # addresses and networks
    frame_ancestors: tuple[str, ...] = ()  # origins that may embed the page
    allowed_origins: tuple[str, ...] = ()  # origins that may call the API (CORS)
    # Captions with less trust are errors.
    minimum_trust: Annotated[float, Interval(ge=0, le=1)] | None = None
    allow_urls: bool = False  # caption photos by URL, from public hosts
    mcp: bool = False  # serve MCP
    mcp_folder: Path | None = None  # photos that MCP clients may name by path

    @property
    def is_local(self) -> bool:
        """Whether the server listens on a loopback address only."""
        address = parse_address(self.host)
        return self.host == "localhost" or (address is not None and address.is_loopback)

    @property
    def max_bodies(self) -> int:
        """Bytes of all unanswered requests together, and of all uploads of gradio_client."""
        return 10 * self.max_upload

    @property
    def accepted_hosts(self) -> list[str]:
        """Accepted Host headers.

        Refusing other names prevents DNS rebinding, in which a web site points its own name at a
        local server.
        """
        if not self.is_local and not self.allowed_hosts:
            return ["*"]
        hosts = [f"[{name}]" if ":" in name else name for name in (self.host, *self.allowed_hosts)]
        return ["localhost", "*.localhost", "127.0.0.1", "[::1]", *hosts]

    def __post_init__(self) -> None:
        check_bounds(self, also=self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        if not re.fullmatch(r"(/[\w.~-]+)*", self.root_path):
            yield f"root_path is {self.root_path}; use a path such as /captioner"
        if self.mcp_folder is not None and not (self.mcp and self.is_local):
            yield "--mcp-folder requires --mcp, and a --host of this machine (the default)"
        if self.mcp_folder is not None and not self.mcp_folder.is_dir():
            yield f"--mcp-folder: {there_is_no('folder', self.mcp_folder)}"
        for name in self.allowed_hosts:
            if not _NAME.fullmatch(name) and parse_address(name) is None:
                yield (
                    f"--allowed-host is {name!r}; use a name such as example.org or *.example.org, "
                    "without scheme, port and path"
                )
        for name in self.trusted_proxies:
            try:
                ip_network(name)
            except ValueError as error:
                yield f"--trusted-proxy: {error}; use an address such as 127.0.0.1 or 10.0.0.0/8"
        origins = [("--frame-ancestor", name) for name in self.frame_ancestors]
        for option, name in origins + [("--allow-origin", name) for name in self.allowed_origins]:
            if not _ORIGIN.fullmatch(name) or (option == "--allow-origin" and "*" in name):
                yield f"{option} is {name!r}; use an origin such as https://example.org"


def parse_size(text: str) -> int:
    """Convert "20MB", "512 kB" or "1000000" to bytes (units of 1000), or raise ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in _UNITS:
        raise ConfigError(f"{text!r} is not a size: write a number with B, kB, MB or GB, like 20MB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def read_tokens(path: str | None) -> dict[str, str]:
    """Read tokens from a file with lines NAME:TOKEN; return them by name.

    Raises ConfigError: the file cannot be read, other users can read it, or a line is invalid.
    """
    if "CAPTIONER_AUTH" in os.environ:  # a server that had a password must not start without one
        raise ConfigError("CAPTIONER_AUTH is set, but no longer read: use --token-file")
    if path is None:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token-file {path} cannot be read: {error}") from error
    if os.name == "posix" and Path(path).stat().st_mode & 0o044:
        raise ConfigError(
            f"others on this machine can read --token-file {path}: run chmod 600 {path}"
        )
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, _, token = line.strip().partition(":")
        if line.strip() and not (name and _TOKEN.fullmatch(token)):
            raise ConfigError(
                f"line {number} of --token-file {path} must be NAME:TOKEN, with at least 16 "
                "characters in the token: make one with openssl rand -hex 32"
            )
        if name in tokens:
            raise ConfigError(f"--token-file {path} has the name {name} twice: use another name")
        if name:
            tokens[name] = token
    if not tokens:
        raise ConfigError(f"--token-file {path} has no line NAME:TOKEN")
    return tokens
