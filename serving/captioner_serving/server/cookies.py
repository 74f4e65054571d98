"""The one cookie that the server reads, and nothing else of what a client sends as cookies.

Python's own reader takes minutes for a cookie of 60 kB of backslashes (CVE-2024-7592), and
Starlette and Gradio use it where all requests are served.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["COOKIE", "only_ours"]

COOKIE = "captioner_page"
"""Names the browser that uploaded a photo, so that the photo is shown to no other."""

_OURS = re.compile(rb"(?:^|;)\s?(%s=[\w-]{1,64})(?=;|$)" % COOKIE.encode())

_Header = tuple[bytes, bytes]


def only_ours(headers: Iterable[_Header]) -> list[_Header]:
    """Leave of all cookies of a request our own."""
    kept = []
    for name, value in headers:
        if name != b"cookie":
            kept.append((name, value))
        elif found := _OURS.search(value):
            kept.append((name, found[1]))
    return kept
