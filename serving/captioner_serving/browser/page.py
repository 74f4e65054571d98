"""Write the page of an exported model; it shares the viewer with the server's page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from captioner_serving.server import STATIC, with_parts

_STATIC = Path(__file__).parent / "static"
_SHARED = (
    *("heat.js", "intake.js", "photo.js", "record.js", "sentence.js", "strip.js", "terms.js"),
    *("viewer.js", "zip.js", "page.css", "viewer.css"),
)


def add_page(folder: Path) -> None:
    """Write index.html and its files into the folder of an exported model."""
    shutil.copytree(_STATIC, folder / "browser")
    for name in _SHARED:
        shutil.copy(STATIC / name, folder / "browser")
    page = folder / "browser" / "index.html"
    # Remove the template of the samples, which only the server has.
    html = re.sub(r"{{#each.*{{/each}}", "", with_parts(page.read_text(encoding="utf-8")))
    (folder / "index.html").write_text(html, encoding="utf-8")
    page.unlink()
