"""Sixteen bytes that stand for a name or for the content of a file."""

from __future__ import annotations

import hashlib

__all__ = ["digest"]


def digest(text: str | bytes) -> bytes:
    """Digest a name or the content of a file."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).digest()[:16]
