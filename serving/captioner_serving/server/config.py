"""What a server is told when it starts, and where its secret comes from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from captioner.errors import ConfigError

__all__ = ["AUTH_VARIABLE", "Credentials", "ServerConfig", "parse_size", "read_credentials"]

AUTH_VARIABLE = "CAPTIONER_AUTH"
"""The environment variable that may hold USER:PASSWORD in place of a file."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How a server listens, and how much it takes on.

    Raises:
        ConfigError: a value cannot work; the detail names every such field.

    """

    # Only this machine, until somebody decides otherwise.
    host: str = "127.0.0.1"
    # Gradio's own, so that what is written about Gradio pages holds. 0: any free one.
    port: int = 7860
    # Bytes of one request, all its images together: a 48-megapixel phone photo is about 15 MB.
    max_upload: int = 20_000_000
    # Images encoded and decoded together. Beyond 16 a batch gains little and delays its first.
    max_batch: int = 16
    # Images accepted and not yet answered. Over it, 503: better than answers nobody waits for.
    queue: int = 64
    # The path under which a proxy shows the server, such as /captioner.
    root_path: str = ""
    # Seconds that a page's upload, and its pictures for download, are kept: with the time between
    # two sweeps, within the ten minutes that the page promises.
    keep: float = 540.0

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value}: {rule}"
            for name, value, good, rule in (
                ("port", self.port, 0 <= self.port <= 65535, "use 0 to 65535"),
                ("max_upload", self.max_upload, self.max_upload >= 1000, "use 1 kB or more"),
                ("max_batch", self.max_batch, 1 <= self.max_batch <= 1024, "use 1 to 1024"),
                ("keep", self.keep, 1 <= self.keep <= 570, "use 1 to 570 seconds"),
                ("queue", self.queue, self.queue >= 1, "use 1 or more"),
                (
                    "root_path",
                    self.root_path or "''",
                    re.fullmatch(r"(/[\w.~-]+)*", self.root_path),
                    "use a path such as /captioner, without a slash at its end",
                ),
            )
            if not good
        ]
        if problems:
            raise ConfigError("; ".join(problems))


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Who may use the server. Its repr does not tell the password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, password=...)"


def read_credentials(path: str | None) -> Credentials | None:
    """Read USER:PASSWORD from a file or the environment; None where neither is given.

    Raises:
        ConfigError: the file cannot be read, or there is no USER:PASSWORD in it.

    """
    if path is not None:
        try:
            text, place = Path(path).read_text(encoding="utf-8"), f"--auth-file {path}"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ConfigError(f"--auth-file {path} cannot be read: {reason}") from error
    elif AUTH_VARIABLE in os.environ:
        text, place = os.environ[AUTH_VARIABLE], AUTH_VARIABLE
    else:
        return None
    user, colon, password = text.strip().partition(":")
    if not (user and colon and password) or "\n" in password:
        raise ConfigError(f"{place} must hold one line, USER:PASSWORD, neither of them empty")
    return Credentials(user=user, password=password)


def parse_size(text: str) -> int:
    """Turn "20MB", "512 kB" or "1000000" into bytes (units of 1000).

    Raises:
        ConfigError: it is no size.

    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in _UNITS:
        raise ConfigError(f"{text!r} is no size: write a number and B, kB, MB or GB, like 20MB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
