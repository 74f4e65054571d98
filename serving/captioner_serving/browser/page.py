"""The files of the page, some of its own and some of the server's page: one viewer, two homes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from captioner_serving.server.parts import STATIC, with_parts

__all__ = ["add_page"]

_OWN = Path(__file__).parent / "static"
_SHARED = (
    "heat.js",
    "intake.js",
    "photo.js",
    "record.js",
    "sentence.js",
    "strip.js",
    "terms.js",
    "viewer.js",
    "page.css",
    "viewer.css",
    "zip.js",
)


def add_page(folder: Path) -> None:
    """Write index.html and what it needs into the folder of an exported model."""
    shutil.copytree(_OWN, folder / "browser")
    for name in _SHARED:
        shutil.copy(STATIC / name, folder / "browser")
    page = folder / "browser" / "index.html"
    # It has no samples, which are a template of the server's.
    html = re.sub(r"{{#each.*{{/each}}", "", with_parts(page.read_text(encoding="utf-8")))
    (folder / "index.html").write_text(html, encoding="utf-8")
    page.unlink()
