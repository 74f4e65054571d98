"""A published file: where it is, and how to tell that one has it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

__all__ = ["RemoteFile"]

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file on the web and what is known of it."""

    url: str
    size: int | None = None  # bytes
    checksum: str | None = None  # "md5:...", "sha1:..." or "sha256:..."

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.url.rsplit("/", 1)[-1]

    def differs(self, path: Path) -> str | None:
        """Compare a local file with what is known; say what differs. Raises OSError."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"it has {size:,} bytes, not {self.size:,}"
        if self.checksum is None:
            return None
        algorithm, _, expected = self.checksum.partition(":")
        digest = hashlib.new(algorithm, usedforsecurity=False)
        bar = tqdm(
            total=size, desc=f"checking {self.name}", unit="B", unit_scale=True, disable=None
        )
        with bar, path.open("rb") as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
                bar.update(len(chunk))
        found = digest.hexdigest()
        return None if found == expected else f"its {algorithm} is {found}, not {expected}"
